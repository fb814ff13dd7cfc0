"""A trainer's step on one GPU: share of its peak, memory, and the paths that may become faster.

Random bf16 weights in the sizes of Qwen3-0.6B, 1.7B and 4B. It measures, for each:

* ``step``: seconds of a step, tokens a second, MFU, peak bytes a weight, with and without
  activation checkpointing;
* ``head``: the gradient of one pass with the output layer's backward products in bf16 and in
  float32, and with forward logits of bf16 operands summed in float32 (same products, another order
  of sums; workers and validators would change together, so the engine does not do it);
* ``attention``: with grouped heads, with copied keys, and with one ``varlen_attn`` a layer (not in
  the engine: whether it equals the validators' kernel bit for bit is printed);
* ``fsdp``: the gradient of a pass under FSDP2 with one rank, beside the plain one;
* ``offload``: AdamW over host memory, with gradients copied there and weights copied back.

MFU is (6 N t + 6 L w sum(l^2)) / (seconds * peak): ``N`` weights, ``t`` tokens, ``L`` layers, ``w``
the width of all query heads, ``l`` the lengths of sequences. Forward costs 2 FLOP a weight and
token, backward twice that; causal attention 2 l^2 w in forward (half of two products). Recomputed
layers do not count. The peak is 989 TFLOP/s, dense bf16 of an H100 or H200 (published).

A part that fails, such as for lack of memory, is reported by its error. No new part begins after
``--seconds``. ``--dry`` runs tiny shapes on a CPU. No figure of this script is measured yet: it was
written without a GPU.

Usage: ``python benchmarks/training/gpu.py [--shapes 0.6b 1.7b 4b] [--dry]``
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from throughput import GROUP, sequences_of
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from protocol.core.types import RunId
from protocol.run.recipe import ModelSection, Recipe
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.engine import prepare_thread
from roles.engines.builtin.head import Head
from roles.engines.training import attention
from roles.engines.training import head as head_module
from roles.engines.training.batch import Pass, collate, select
from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.learner import Learner
from roles.engines.training.packed_model import PackedModel, sharded
from roles.engines.training.ranks import Ranks

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "qwen3-0.6b-math.toml"
PEAK_FLOPS = 989e12
RUN = RunId(b"\x5a" * 32)
SHAPES: dict[str, dict[str, Any]] = {
    "dry": {
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    "0.6b": {},
    "1.7b": {"hidden_size": 2048, "intermediate_size": 6144},
    "4b": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
}
OFFLOADED_WEIGHTS_MAX = 1_000_000_000

Found = dict[str, Any]


class SeededEngine(TorchTrainingEngine):
    """The engine with weights that come from no file."""

    def seed(self, weights: dict[str, Tensor]) -> Learner:
        """Adopt masters, and return the learner."""
        self._learner = learner = self._builder.learner(weights)
        return learner

    def step_now(self, batch: Sequence[Any]) -> None:
        """Make one step in this thread."""
        for name, arguments in (("begin_step", (batch,)), ("end_step", ())):
            getattr(TorchTrainingEngine, name).__wrapped__(self, *arguments)

    def pass_of(self, batch: Sequence[Any]) -> Pass:
        """Return all sequences as one pass."""
        return collate([replace(one, weight=1.0) for one in select(batch)], self._device)


class Bench:
    """One shape on one device."""

    def __init__(self, shape: str, recipe: Recipe, options: argparse.Namespace) -> None:
        self.device = options.device
        model = recipe.model.model_dump()
        model["config"] |= SHAPES[shape] | {"eos_token_id": 1}
        self.model, self.recipe = ModelSection(**model | {"rounding": "dither"}), recipe
        self.config = configuration(self.model.architecture, self.model.config)
        torch.manual_seed(1)
        self.weights = {
            name: one.cpu()
            for name, one in tensors_of(
                build_model(self.config, torch.bfloat16, self.device)
            ).items()
        }
        self.count = sum(one.numel() for one in self.weights.values())
        self.tokens, self.length = options.tokens, options.length
        prompt = self.length // 8
        self.batch = sequences_of(
            max(GROUP, self.tokens // self.length),
            prompt,
            self.length - prompt,
            self.model.vocabulary_size,
            spread=False,
        )

    def engine(self, checkpointing: bool | None) -> SeededEngine:
        """Return an engine without weights."""
        return SeededEngine(
            self.model,
            self.recipe.sampling,
            self.recipe.grpo,
            run=RUN,
            checkpointing=checkpointing,
            device=self.device,
        )

    def seconds(self, work: Callable[[], Any], rounds: int = 3) -> float:
        """Return the least time of some rounds, after one that allocates."""
        taken = []
        for _ in range(rounds + 1):
            self.settle()
            began = time.perf_counter()
            work()
            self.settle()
            taken.append(time.perf_counter() - began)
        return min(taken[1:])

    def settle(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def flop(self) -> float:
        """Return the useful operations of a step of the batch."""
        lengths = [len(one.prompt) + len(one.tokens) - 1 for one in self.batch]
        width = self.config.num_attention_heads * self.config.head_dim
        scores = 6 * self.config.num_hidden_layers * width * sum(n * n for n in lengths)
        return 6.0 * self.count * sum(lengths) + scores


def gradient(model: PackedModel, packed: Pass) -> None:
    """Compute the gradient of the sum of a pass's log-probabilities."""
    logprobs, _ = model(packed)
    torch.autograd.backward(logprobs.sum())


def step(bench: Bench) -> Found:
    """Measure whole steps of the engine."""
    found: Found = {}
    for name, checkpointing in (("kept", False), ("recomputed", True), ("default", None)):
        engine = bench.engine(checkpointing)
        learner = engine.seed(bench.weights)
        if bench.device != "cpu":
            torch.cuda.reset_peak_memory_stats(bench.device)

        def work(engine: SeededEngine = engine) -> None:
            engine.step_now(bench.batch)

        try:
            seconds = bench.seconds(work)
        except torch.OutOfMemoryError as error:
            found[name] = {"error": str(error)[:80]}
        else:
            tokens = sum(len(one.prompt) + len(one.tokens) - 1 for one in bench.batch)
            found[name] = {
                "seconds": seconds,
                "tokens_per_second": tokens / seconds,
                "mfu": bench.flop() / seconds / PEAK_FLOPS,
                "update_seconds": bench.seconds(lambda own=learner: updated(own)),
            }
            if bench.device != "cpu":
                peak = torch.cuda.max_memory_allocated(bench.device)
                found[name]["peak_bytes_per_weight"] = peak / bench.count
        engine.close()
        del engine, learner, work
        forget(bench.device)
    return found


def updated(learner: Learner) -> None:
    """Make an update with the gradients there are."""
    learner.update(learner.gradient_norm(), 1.0, 1e-6)


def forget(device: str) -> None:
    """Return cached memory to the device."""
    if device != "cpu":
        torch.cuda.empty_cache()


def switched(bench: Bench, switches: dict[str, Any]) -> Found:
    """Return the seconds of a pass's gradient under each switch, and the values it changes."""
    engine = bench.engine(None)
    learner = engine.seed(bench.weights)
    packed = engine.pass_of(bench.batch)
    found: Found = {}
    with torch.no_grad():
        expected, _ = learner.model(packed)
    for name, switch in switches.items():
        with switch():
            with torch.no_grad():
                own, _ = learner.model(packed)
            found[name] = {
                "seconds": bench.seconds(lambda: gradient(learner.model, packed)),
                "logprob_difference_max": float((own - expected).abs().max()),
            }
        learner.forget_gradients()
    engine.close()
    return found


@contextmanager
def unchanged() -> Iterator[None]:
    """Change nothing."""
    yield


def heads(bench: Bench) -> Found:
    """Measure the products of the output layer."""

    @contextmanager
    def exact() -> Iterator[None]:
        def whole(tensor: Tensor, **_: Any) -> Tensor:
            return tensor

        with patch.object(head_module, "operand", whole):
            yield

    @contextmanager
    def narrow() -> Iterator[None]:
        def logits(self: Head, states: Tensor, temperature: float) -> Tensor:
            rows, weight = states.bfloat16(), self.weight.bfloat16().T
            if states.device.type == "cpu":  # torch has the operator for CUDA alone
                return (rows.float() @ weight.float()).div_(temperature)
            return torch.mm(rows, weight, out_dtype=torch.float32).div_(temperature)

        with patch.object(Head, "logits", logits):
            yield

    return switched(bench, {"engine": unchanged, "float32 backward": exact, "bf16 forward": narrow})


def attentions(bench: Bench) -> Found:
    """Measure the attention of packed sequences."""

    @contextmanager
    def copies() -> Iterator[None]:
        with patch.object(attention, "_takes_groups", lambda _: False):
            yield

    @contextmanager
    def varlen() -> Iterator[None]:
        from transformers import AttentionInterface  # noqa: PLC0415

        AttentionInterface.register(attention.PACKED, varlen_attention)
        try:
            yield
        finally:
            AttentionInterface.register(attention.PACKED, attention.packed_attention)

    return switched(bench, {"engine": unchanged, "copied keys": copies, "varlen": varlen})


def varlen_attention(
    _module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: None, **given: Any
) -> tuple[Tensor, None]:
    """Attend as ``packed_attention`` does, in one kernel for sequences of any lengths."""
    scaling = given["scaling"]
    lengths = [length for length, count in given["runs"] for _ in range(count)]
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    if query.device.type == "cpu":  # the kernel exists for CUDA alone
        parts = [one.transpose(0, 1).split(lengths, 1) for one in (q, k, v)]
        each = [
            scaled_dot_product_attention(*own, is_causal=True, scale=scaling, enable_gqa=True)
            for own in zip(*parts, strict=True)
        ]
        return torch.cat(each, 1).transpose(0, 1)[None], None
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

    ends = torch.tensor([0, *lengths], device=q.device).cumsum(0).to(torch.int32)
    longest = max(lengths)
    options = {"scale": scaling, "window_size": (-1, 0), "enable_gqa": True}
    found = varlen_attn(q, k, v, ends, ends, longest, longest, **options)
    return found[None], None


def fsdp(bench: Bench) -> Found:
    """Compare the gradient of a pass under FSDP2, with one rank, with the plain one."""
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    kind = torch.device(bench.device).type
    engine = bench.engine(None)
    learner = engine.seed(bench.weights)
    packed = engine.pass_of(bench.batch)
    plain = bench.seconds(lambda: gradient(learner.model, packed))
    engine.close()
    learner.forget_gradients()
    forget(bench.device)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            init_method=f"file://{folder}/meeting",
            rank=0,
            world_size=1,
        )
        try:
            model = sharded(
                lambda causal: PackedModel(
                    causal, torch.bfloat16, bench.model.head, 1.0, entropy_gradient=False
                ),
                bench.config,
                lambda name: bench.weights[name].float(),
                torch.bfloat16,
                bench.device,
                Ranks(0, 1, init_device_mesh(kind, (1,))),
            )
            own = bench.seconds(lambda: gradient(model, packed))
        finally:
            dist.destroy_process_group()
    return {"plain_seconds": plain, "fsdp_seconds": own}


def offload(bench: Bench) -> Found:
    """Measure an update of masters and moments in host memory, one thread for each core."""
    if bench.count > OFFLOADED_WEIGHTS_MAX:
        return {"skipped": "only smaller shapes: 16 bytes a weight of host memory"}
    pinned = bench.device != "cpu"
    own = [torch.nn.Parameter(one.float()) for one in bench.weights.values()]
    device = [one.to(bench.device) for one in bench.weights.values()]
    for parameter in own:
        grad = torch.empty_like(parameter)
        parameter.grad = grad.pin_memory() if pinned else grad
    rules = bench.recipe.grpo
    optimizer = torch.optim.AdamW(own, lr=rules.learning_rate, betas=rules.adam_betas, fused=True)

    def fetch() -> None:
        for one, parameter in zip(device, own, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(one.float(), non_blocking=True)

    @torch.no_grad()
    def put() -> None:
        for one, parameter in zip(device, own, strict=True):
            one.copy_(parameter)

    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)) if pinned else 1)
    try:
        return {
            "fetch_seconds": bench.seconds(fetch),
            "adamw_seconds": bench.seconds(optimizer.step),
            "put_seconds": bench.seconds(put),
        }
    finally:
        torch.set_num_threads(threads)


PARTS: dict[str, Callable[[Bench], Found]] = {
    "step": step,
    "head": heads,
    "attention": attentions,
    "fsdp": fsdp,
    "offload": offload,
}


def measured(options: argparse.Namespace) -> Found:
    """Measure all parts of all shapes until the time is up."""
    began = time.monotonic()
    recipe = load_recipe(RECIPE.read_text())
    results: Found = {
        "device": "cpu" if options.device == "cpu" else torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    for shape in options.shapes:
        bench = Bench(shape, recipe, options)
        found: Found = {"weights": bench.count, "flop_per_step": bench.flop()}
        results[shape] = found
        for name in options.parts:
            if time.monotonic() - began > options.seconds:
                found[name] = {"skipped": "out of time"}
                continue
            try:
                found[name] = PARTS[name](bench)
            except (RuntimeError, AttributeError, TypeError, ImportError) as error:
                if options.dry:
                    raise
                found[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
            forget(options.device)
            print(f"{shape} {name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.6b", "1.7b", "4b"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a sequence")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--dry", action="store_true", help="a tiny shape on a CPU")
    options = parser.parse_args()
    if options.dry:
        options.shapes, options.device, options.tokens, options.length = ["dry"], "cpu", 128, 16
    prepare_thread()
    print(json.dumps(measured(options)))


if __name__ == "__main__":
    main()
