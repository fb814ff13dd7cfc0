"""Peak memory of a trainer's optimizer step at a real model's vocabulary.

It runs a step of the testnet's model at that vocabulary with our engine and with the plain form:
all logits of a pass, float32 log-softmax, autograd. Each runs in a separate process. The peak is
the memory above that held between steps (weights, gradients, both moments), per predicted token; so
it includes the optimizer's buffers. It is that of the process or, on CUDA, of torch's allocator.
Then both forms compute the gradient of one small batch.

Usage: ``python benchmarks/numerics/trainer_memory.py [--vocabulary N] [--tokens N]
[--dtype bf16] [--json]``
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from node.local.memory import peak_rss_bytes
from protocol.core.types import Version
from protocol.run.recipe import ModelSection
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import DTYPES, Precision, write_policy
from roles.engines.training.batch import collate
from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.losses import weighted_loss
from roles.ports.engines import Policy, TrainingSequence

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"
PROMPT = (2, 3, 4, 5)
SEQUENCE_TOKENS = 128


def batch_of(tokens: int, vocabulary: int) -> list[TrainingSequence]:
    """Return one group of sequences with random tokens, every other one rewarded."""
    draws = torch.Generator().manual_seed(1)
    length = min(tokens // 2, SEQUENCE_TOKENS)
    made = []
    for number in range(tokens // length):
        drawn = torch.randint(2, vocabulary, (length,), generator=draws).tolist()
        logprobs = (-12 * torch.rand(length, generator=draws)).tolist()
        made.append(TrainingSequence(0, PROMPT, tuple(drawn), tuple(logprobs), number % 2))
    return made


class ChunkedEngine(TorchTrainingEngine):
    """The project's engine; exposes its gradients."""

    def gradients(self) -> Tensor:
        """Return the last step's gradients, scaled to norm 1."""
        return torch.cat([one.flatten() for one in self.gradients_by_name().values()])

    def gradients_by_name(self) -> dict[str, Tensor]:
        """Return copies of the gradients of the last update, or of a step that has begun."""
        masters = self._loaded().masters.items()
        return {name: p.grad.detach().clone() for name, p in masters if p.grad is not None}

    def held_bytes_per_weight(self) -> float:
        """Return the bytes held between steps: weights, masters, gradients, both moments."""
        loaded = self._loaded()
        parameters = {*loaded.model.parameters(), *loaded.masters.values()}
        held = [one for p in parameters for one in (p, p.grad) if one is not None]
        moments = loaded.optimizer.state.values()
        held += [one[name] for one in moments for name in ("exp_avg", "exp_avg_sq")]
        count = sum(one.numel() for one in loaded.masters.values())
        return sum(one.nbytes for one in held) / count


class PlainEngine(ChunkedEngine):
    """Keeps the log-probabilities of the whole vocabulary for every token of a pass."""

    def _accumulate(self, model: Any, members: Any, sums: Any) -> None:
        packed, causal = collate(members, self._device), model.causal
        states = causal.model(
            inputs_embeds=causal.model.embed_tokens(packed.tokens).to(self._dtype),
            position_ids=packed.positions,
            runs=packed.runs,
            use_cache=False,
        ).last_hidden_state
        logits = causal.lm_head(states[0, packed.predictors].float())
        distribution = logits.log_softmax(-1)  # the recipe's temperature is 1
        logprobs = distribution.gather(1, packed.targets[:, None])[:, 0]
        entropies = -(distribution.exp() * distribution).sum(-1)
        loss, _ = weighted_loss(self._loss, packed, logprobs, entropies)
        loss.backward()
        nothing = torch.zeros_like(loss)
        totals = loss.detach(), nothing, nothing, entropies.detach().sum(), nothing
        sums.passes.append(torch.stack(totals))


FORMS: dict[str, type[ChunkedEngine]] = {"chunked": ChunkedEngine, "plain": PlainEngine}


async def engine_of(
    form: str, vocabulary: int, device: str, dtype: Precision = "fp32"
) -> ChunkedEngine:
    """Return an engine of a form for the testnet's model at that vocabulary."""
    recipe = load_recipe(RECIPE.read_text())
    config = recipe.model.config | {"vocab_size": vocabulary, "max_position_embeddings": 4096}
    model = ModelSection(**recipe.model.model_dump() | {"config": config, "dtype": dtype})
    engine = FORMS[form](model, recipe.sampling, recipe.grpo, device=device)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "policy"
        torch.manual_seed(1)
        network = build_model(configuration("qwen2", config), torch.float32, "cpu")
        digest = write_policy(tensors_of(network), path, DTYPES[dtype])
        del network
        await engine.load_policy(Policy(Version(0), digest, path))
    return engine


def bytes_held(device: str, *, peak: bool) -> int:
    """Return the bytes held now, or at the peak."""
    if device != "cpu":
        read = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
        return read(device)
    if peak:  # not ``ru_maxrss``: Linux starts it at the memory of the process that forked
        return peak_rss_bytes(os.getpid())
    return psutil.Process().memory_info().rss


@dataclass(frozen=True, slots=True)
class Step:
    """One step: bytes held before it, peak bytes, and time."""

    held_bytes: int
    peak_bytes: int
    seconds: float


async def measured_step(
    engine: TorchTrainingEngine, vocabulary: int, tokens: int, device: str
) -> Step:
    """Train an engine that has a policy on that many tokens."""
    await engine.step(batch_of(2, vocabulary))  # allocates gradients and moments
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    held = bytes_held(device, peak=False)
    began = time.perf_counter()
    await engine.step(batch_of(tokens, vocabulary))
    if device != "cpu":
        torch.cuda.synchronize(device)
    return Step(held, bytes_held(device, peak=True), time.perf_counter() - began)


async def peak_of_step(
    form: str, vocabulary: int, tokens: int, device: str, dtype: Precision
) -> dict[str, float]:
    """Return a step's peak bytes per token above the memory held between steps."""
    engine = await engine_of(form, vocabulary, device, dtype)
    step = await measured_step(engine, vocabulary, tokens, device)
    engine.close()
    peak = step.peak_bytes - step.held_bytes
    return {
        "bytes_per_token": peak / tokens,
        "ms_per_token": 1000 * step.seconds / tokens,
        "held_bytes_per_weight": engine.held_bytes_per_weight(),
    }


def measured(
    form: str, vocabulary: int, tokens: int, device: str, dtype: Precision
) -> dict[str, float]:
    """Run ``peak_of_step`` in a separate process: a process's peak never falls."""
    arguments = [
        "--measure",
        form,
        "--vocabulary",
        vocabulary,
        "--tokens",
        tokens,
        "--dtype",
        dtype,
    ]
    command = [sys.executable, __file__, *map(str, arguments), "--device", device]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


async def gradient_error(vocabulary: int, tokens: int, device: str, dtype: Precision) -> float:
    """Return the largest difference of a gradient's elements, relative to the largest element."""
    ours, plain = [await engine_of(form, vocabulary, device, dtype) for form in FORMS]
    for engine in (ours, plain):
        await engine.step(batch_of(tokens, vocabulary))
        engine.close()
    expected = plain.gradients()
    return float((ours.gradients() - expected).abs().max() / expected.abs().max())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--plain-tokens", type=int, default=256, help="2,048 would take 6 GB")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of the policy")
    parser.add_argument("--measure", choices=FORMS, help="one form, in this process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary, device, dtype = options.vocabulary, options.device, options.dtype
    if options.measure:
        peak = asyncio.run(peak_of_step(options.measure, vocabulary, options.tokens, device, dtype))
        print(json.dumps(peak))
        return
    plain = measured("plain", vocabulary, options.plain_tokens, device, dtype)
    results = {
        "vocabulary": vocabulary,
        "tokens": options.tokens,
        **measured("chunked", vocabulary, options.tokens, device, dtype),
        **{f"plain_{name}": value for name, value in plain.items()},
        "gradient_error": asyncio.run(
            gradient_error(vocabulary, options.plain_tokens, device, dtype)
        ),
    }
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:24} {value:16,.9g}")


if __name__ == "__main__":
    main()
