"""Tokens per CPU second of a trainer's step and of a plain Hugging Face loop, and a step's shares.

Both train the same random model of SmolLM2-135M's shape on the same sequences with the same loss
and AdamW, in one process and one thread, a step of each in turn; the order of a round changes. The
plain loop pads batches on the right, multiplies the output layer at answers alone, and lets
autograd keep everything:

* ``plain``: parameters and AdamW in float32; for bf16 policies bf16 parameters, whose gradients are
  added up and stepped in float32 masters, as ours are;
* ``autocast``, for bf16 policies: float32 parameters under ``torch.autocast``.

It computes no entropy and compares nothing with the workers' claims, which a step of ours does.

Usage: ``python benchmarks/training/throughput.py [--rounds N] [--dtype bf16] [--json]``
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.profiler import ProfilerActivity, profile, record_function

from protocol.core.types import RunId, Version
from protocol.run.recipe import ModelSection, Recipe
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, model_of, tensors_of
from roles.engines.files.policy import DTYPES, write_policy
from roles.engines.training.batch import group_advantages
from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.losses import two_sided_losses
from roles.engines.training.optimiser import adamw_of
from roles.engines.training.rounding import Dither
from roles.ports.engines import Policy, TrainingSequence

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "smollm2-135m.toml"
RUN = RunId(b"\x5a" * 32)
DRY = {
    "vocab_size": 512,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}
"""Sizes for a test of this script."""
GROUP = 8
FORMS = ("plain", "autocast")

PARTS = {
    "_ChunkedHead": "head",
    "aten::scaled_dot_product": "attention",
    "ScaledDotProduct": "attention",
    "RepeatInterleave": "attention",
    "aten::repeat_interleave": "attention",
    "Optimizer.step": "optimiser",
    "aten::_foreach": "optimiser",
    "rounding": "rounding",
    "aten::mm": "layers, products",
    "aten::linear": "layers, products",
    "aten::addmm": "layers, products",
    "torch::autograd::AccumulateGrad": "gradients added up",
}
"""Part of the step of an operation with this prefix, and of all that it calls."""

Found = dict[str, Any]


def sequences_of(
    count: int, prompt: int, answer: int, vocabulary: int, *, spread: bool
) -> list[TrainingSequence]:
    """Return groups of random sequences, every other one rewarded.

    With ``spread`` the answers have from ``answer`` down to a third of it as tokens.
    """
    draws = torch.Generator().manual_seed(1)
    made = []
    for number in range(count):
        length = answer - spread * (number * 3 % 8) * answer // 11
        drawn = torch.randint(2, vocabulary, (prompt + length,), generator=draws).tolist()
        logprobs = (0.01 * torch.randn(length, generator=draws) - 10.8).tolist()
        texts = tuple(drawn[:prompt]), tuple(drawn[prompt:])
        made.append(TrainingSequence(number // GROUP, *texts, tuple(logprobs), number % 2))
    return made


class PlainLoop:
    """A training step as a script with transformers would have it."""

    def __init__(
        self, model: ModelSection, recipe: Recipe, weights: dict[str, Tensor], form: str
    ) -> None:
        config = configuration(model.architecture, model.config)
        self._autocast = form == "autocast"
        dtype = torch.float32 if self._autocast else DTYPES[model.dtype]
        self._model = model_of(config, weights, dtype, "cpu")
        self._grpo, self._temperature = recipe.grpo, recipe.sampling.temperature
        self._own = list(self._model.parameters())
        self._masters = self._own
        if dtype != torch.float32:
            self._masters = [Parameter(one.detach().float()) for one in self._own]
        self._optimizer = adamw_of(recipe.grpo, self._masters)

    def step(self, batch: Sequence[TrainingSequence], pass_tokens: int) -> float:
        """Make one update; return its loss."""
        rewards = torch.tensor([one.reward for one in batch], dtype=torch.float64)
        groups = torch.tensor([one.group for one in batch])
        advantages = group_advantages(rewards, groups).tolist()
        total = sum(len(one.tokens) for one in batch)
        loss = 0.0
        for places in _padded(batch, pass_tokens):
            members = [batch[place] for place in places]
            part = self._loss(members, [advantages[place] for place in places]) / total
            part.backward()
            loss += float(part.detach())
            self._add_up()
        clip_grad_norm_(self._masters, self._grpo.gradient_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for own, master in zip(self._own, self._masters, strict=True):
                if own is not master:
                    own.copy_(master)
        return loss

    def _loss(self, members: Sequence[TrainingSequence], advantages: Sequence[float]) -> Tensor:
        rows = [(one.prompt + one.tokens)[:-1] for one in members]
        width = max(map(len, rows))
        tokens = torch.tensor([row + (0,) * (width - len(row)) for row in rows])
        places = [(row, len(one.prompt) - 1, len(one.tokens)) for row, one in enumerate(members)]
        own = [row * width + start + place for row, start, n in places for place in range(n)]
        counts = torch.tensor([n for *_, n in places])
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            states = self._model.model(input_ids=tokens, use_cache=False).last_hidden_state
            states = states.flatten(0, 1)[own]
            head = self._model.lm_head.weight
        # The manifest's head is float32: logits of float32 products.
        logits = states.float() @ head.float().T / self._temperature
        targets = torch.tensor([*chain(*(one.tokens for one in members))])
        logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
        old = torch.tensor([*chain(*(one.logprobs for one in members))])
        each = torch.tensor(advantages).repeat_interleave(counts)
        rules = self._grpo.loss
        assert rules.delta is not None
        losses, _ = two_sided_losses(
            logprobs - old, each, rules.epsilon, rules.upper_epsilon, rules.delta
        )
        return losses.sum()

    def _add_up(self) -> None:
        for own, master in zip(self._own, self._masters, strict=True):
            if own is master:
                continue
            assert own.grad is not None
            if master.grad is None:
                master.grad = own.grad.float()
            else:
                master.grad += own.grad
            own.grad = None


def _padded(batch: Sequence[TrainingSequence], pass_tokens: int) -> Iterator[list[int]]:
    """Yield the places of batches of similar length, at most ``pass_tokens`` with padding."""
    lengths = {n: len(one.prompt) + len(one.tokens) - 1 for n, one in enumerate(batch)}
    places: list[int] = []
    for place in sorted(lengths, key=lambda place: -lengths[place]):
        if places and (len(places) + 1) * lengths[places[0]] > pass_tokens:
            yield places
            places = []
        places.append(place)
    yield places


class OurStep:
    """The trainer's engine without its thread, so that a profiler sees its operations."""

    def __init__(
        self, model: ModelSection, recipe: Recipe, policy: Policy, pass_tokens: int
    ) -> None:
        self.engine = TorchTrainingEngine(
            model, recipe.sampling, recipe.grpo, run=RUN, pass_tokens=pass_tokens
        )
        self._called("load_policy", policy)

    def _called(self, method: str, *arguments: Any) -> Any:
        """Call what the coroutine function ``method`` runs in the engine's thread."""
        return getattr(TorchTrainingEngine, method).__wrapped__(self.engine, *arguments)

    def recompute(
        self, policy: Policy, batch: Sequence[TrainingSequence]
    ) -> list[TrainingSequence]:
        """Return the batch with the trainer's log-probabilities."""
        return self._called("recompute", policy, batch)

    def step(self, batch: Sequence[TrainingSequence]) -> float:
        """Make one update; return its loss."""
        self._called("begin_step", batch)
        return self._called("end_step").loss


def cpu_seconds(step: Callable[[], float]) -> tuple[float, float]:
    """Return the CPU seconds of a step of this process's threads, and its loss."""
    began = time.process_time()
    loss = step()
    return time.process_time() - began, loss


def shares(step: Callable[[], float]) -> dict[str, float]:
    """Return each part's share of the CPU time of a step under torch's profiler."""
    rounded = Dither.__call__

    def recorded(*arguments: Any) -> Tensor:
        with record_function("rounding"):
            return rounded(*arguments)

    activities = [ProfilerActivity.CPU]
    with patch.object(Dither, "__call__", recorded), profile(activities=activities) as profiled:
        began = time.perf_counter()
        step()
        taken = time.perf_counter() - began
    found: dict[str, float] = {}
    for event in profiled.events():
        part = _part_of(event)
        found[part] = found.get(part, 0.0) + event.self_cpu_time_total / 1e6
    found["outside of operations"] = taken - sum(found.values())
    return {part: value / taken for part, value in sorted(found.items(), key=lambda p: -p[1])}


def _part_of(event: Any) -> str:
    """Return the part of the outermost operation with a part, or of none."""
    found = "other operations"
    while event is not None:
        for prefix, part in PARTS.items():
            if event.name.removeprefix("autograd::engine::evaluate_function: ").startswith(prefix):
                found = part
        event = event.cpu_parent
    return found


def measured(recipe: Recipe, dtype: str, folder: Path, options: argparse.Namespace) -> Found:
    """Return the figures of one precision."""
    config = recipe.model.config | (DRY if options.dry else {})
    section = recipe.model.model_dump() | {"config": config, "dtype": dtype}
    section["rounding"] = "dither" if dtype == "bf16" else None
    model = ModelSection(**section)
    torch.manual_seed(1)
    network = build_model(configuration(model.architecture, config), torch.float32, "cpu")
    path = folder / dtype
    digest = write_policy(tensors_of(network), path, DTYPES[model.dtype])
    weights = {name: one.to(DTYPES[model.dtype]) for name, one in tensors_of(network).items()}
    del network
    policy = Policy(Version(0), digest, path)
    ours = OurStep(model, recipe, policy, options.pass_tokens)
    batch = ours.recompute(
        policy,
        sequences_of(
            options.sequences,
            options.prompt,
            options.answer,
            model.vocabulary_size,
            spread=options.spread,
        ),
    )
    forms: dict[str, Callable[[], float]] = {"ours": lambda: ours.step(batch)}
    for name in FORMS[: 1 + (dtype == "bf16")] if options.autocast else FORMS[:1]:
        loop = PlainLoop(model, recipe, weights, name)
        forms[name] = lambda loop=loop: loop.step(batch, options.pass_tokens)  # type: ignore[misc]
    del weights
    tokens = sum(len(one.prompt) + len(one.tokens) - 1 for one in batch)
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    losses: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(options.rounds + 1):  # the first round allocates
        for name in list(forms)[:: 1 if number % 2 else -1]:
            taken, loss = cpu_seconds(forms[name])
            losses[name].append(loss)
            if number:
                seconds[name].append(taken)
            print(f"{dtype} {name}: {taken:.2f} CPU s", file=sys.stderr, flush=True)
    speeds = {name: tokens / statistics.median(own) for name, own in seconds.items()}
    found = {
        "tokens": tokens,
        "answer_tokens": sum(len(one.tokens) for one in batch),
        "tokens_per_cpu_second": speeds,
        "all_cpu_seconds": seconds,
        "losses": losses,
        "ratio": speeds["ours"] / max(own for name, own in speeds.items() if name != "ours"),
    }
    if options.shares:
        found["shares"] = shares(forms["ours"])
    ours.engine.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--sequences", type=int, default=10)
    parser.add_argument("--prompt", type=int, default=40)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--spread", action="store_true", help="answers of several lengths")
    parser.add_argument("--pass-tokens", type=int, default=520)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--autocast", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--shares", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--dry", action="store_true", help="a model of a tenth of a million weights"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(RECIPE.read_text())
    results: Found = {"load": os.getloadavg()[0], "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as directory:
        for dtype in options.dtype:
            results[dtype] = measured(recipe, dtype, Path(directory), options)
    results["load_after"] = os.getloadavg()[0]
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:12} {json.dumps(value, indent=1)}")


if __name__ == "__main__":
    main()
