"""Log-probabilities of worker and validator against Hugging Face's forward pass, in float32.

Prompts are passages of this project's docs, cut to lengths between ``--shortest`` and ``--longest``
tokens, with a question, in the model's chat template. A worker answers each; then Hugging Face
computes every sequence alone and without a cache, with its default attention. The script compares
the log-probabilities of all answer tokens: worker and validator with Hugging Face, and the worker
with the validator.

Usage: ``python benchmarks/numerics/huggingface.py --model DIR [--prompts N] [--json]``
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read at import of transformers

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from node.founding.recipes import read_recipe
from protocol.core.types import Version
from protocol.rollout.statistics import Recomputed
from roles.engines.bootstrap.huggingface_import import import_pretrained, section_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.files.tokenizer import HuggingFaceTokenizer
from roles.ports.engines import GenerationRequest, Policy, VerificationRequest, claims_of

PAGES = Path(__file__).parents[2] / "docs"
DIFFERENCE_MAX = 5e-5
"""Maximum for any token in nats, as promised in ``docs/models.md``."""

TEMPERATURE = 1.0
FIRST = Version(0)

Answer = tuple[tuple[int, ...], tuple[int, ...]]
"""A prompt, and the answer's tokens."""


def passages(count: int) -> Iterator[str]:
    """Yield different passages of the docs, each as long as a page."""
    pages = sorted(PAGES.rglob("*.md"), key=lambda path: (-path.stat().st_size, path.name))
    for number in range(count):
        text = pages[number % len(pages)].read_text()
        yield text[1000 * (number // len(pages)) :]


def prompts_of(
    tokenizer: HuggingFaceTokenizer, count: int, shortest: int, longest: int
) -> list[tuple[int, ...]]:
    """Return prompts with lengths spread evenly from ``shortest`` to ``longest`` tokens."""
    frame = len(tokenizer.encode_chat("What does this passage say?\n\n"))
    prompts = []
    for number, text in enumerate(passages(count)):
        length = shortest + (longest - shortest) * number // max(1, count - 1)
        kept = tokenizer.encode(text)[: max(1, length - frame)]
        prompts.append(
            tokenizer.encode_chat(f"What does this passage say?\n\n{tokenizer.decode(kept)}")
        )
    return prompts


def logprobs_of(model: torch.nn.Module, sequences: Sequence[Answer]) -> list[Tensor]:
    """Return Hugging Face's log-probabilities of the answers."""
    found = []
    with torch.inference_mode():
        for prompt, tokens in sequences:
            logits = model(input_ids=torch.tensor([[*prompt, *tokens[:-1]]])).logits
            rows = (logits[0, len(prompt) - 1 :] / TEMPERATURE).log_softmax(-1)
            found.append(rows.gather(1, torch.tensor(tokens)[:, None])[:, 0])
    return found


def checked(
    engine: TransformersVerificationEngine, requests: Sequence[VerificationRequest]
) -> list[Tensor]:
    """Return a validator's log-probabilities."""
    made = asyncio.run(_recomputed(engine, requests))
    return [torch.tensor(one.logprobs) for one in made if isinstance(one, Recomputed)]


async def _recomputed(
    engine: TransformersVerificationEngine, requests: Sequence[VerificationRequest]
) -> Sequence[Recomputed | str]:
    return await engine.recompute(FIRST, requests, TEMPERATURE)


def spread(own: Sequence[Tensor], other: Sequence[Tensor]) -> dict[str, float]:
    """Return the largest and the mean absolute difference, in nats."""
    difference = (torch.cat([*own]) - torch.cat([*other])).abs()
    return {"largest": float(difference.max()), "mean": float(difference.mean())}


def compare(options: argparse.Namespace) -> dict[str, object]:
    """Return all differences."""
    recipe = read_recipe("tiny-qwen3-bpe")
    section = section_of(options.model, recipe.model.model_copy(update={"dtype": "fp32"}))
    toploc = recipe.toploc.model_copy(update={"precision": "fp32"})
    tokenizer = HuggingFaceTokenizer(
        options.model, section.vocabulary_size, datetime.fromtimestamp(0, UTC)
    )
    prompts = prompts_of(tokenizer, options.prompts, options.shortest, options.longest)
    requests = [
        GenerationRequest(prompt, seed, options.answer) for seed, prompt in enumerate(prompts)
    ]
    started = time.process_time()
    with (
        tempfile.TemporaryDirectory(prefix="numerics-") as folder,
        closing(TransformersGenerationEngine(section, toploc)) as worker,
        closing(TransformersVerificationEngine(section, toploc)) as validator,
    ):
        path = Path(folder) / "policy"
        policy = Policy(FIRST, import_pretrained(options.model, path, "fp32"), path)
        asyncio.run(worker.load(policy))
        asyncio.run(validator.load(policy))
        made = asyncio.run(worker.generate(requests, TEMPERATURE))
        claims = claims_of(requests, made)
        own = [torch.tensor(one.logprobs) for one in made]
        validated = checked(validator, claims)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    expected = logprobs_of(model, [one.claim for one in claims])
    return {
        "model": section.name,
        "prompts": len(prompts),
        "prompt_tokens": [min(map(len, prompts)), max(map(len, prompts))],
        "answer_tokens": sum(len(one.tokens) for one in made),
        "worker": spread(own, expected),
        "validator": spread(validated, expected),
        "worker_to_validator": spread(own, validated),
        "cpu_seconds": round(time.process_time() - started),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; return 1 if any difference exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--shortest", type=int, default=40, help="tokens of the shortest prompt")
    parser.add_argument("--longest", type=int, default=1000, help="tokens of the longest prompt")
    parser.add_argument("--answer", type=int, default=32, help="maximum tokens of an answer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    result = compare(options)
    differences = [one["largest"] for one in result.values() if isinstance(one, dict)]
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            if isinstance(value, dict):
                print(f"{key:22} largest {value['largest']:.2e}, mean {value['mean']:.2e} nats")
            else:
                print(f"{key:22} {value}")
    return int(not all(one <= DIFFERENCE_MAX for one in differences))


if __name__ == "__main__":
    raise SystemExit(main())
