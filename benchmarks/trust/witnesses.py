"""Witness values of honest engines, false dissents, and verdicts until lazy members are named.

Honest engines differ in attention kernel, sequences per prefill and threads. Each computes the
witness values of many points; a verdict takes eight of them, and a committee seven engines at
random. The limits are those of a calibration of the same engines on sampled tokens, as ``run
create`` makes it. The lazy members are these:

* ``invented``: values drawn from the true distribution of values, and the body's tokens as replays;
* ``mean``: the mean of all true values, the best constant guess, and the body's tokens;
* ``skipped replay``: true values, and the body's tokens as replays.

A member that copies a verdict is not simulated: its first verdict does not fit its seal.

``--model`` measures a published model from a Hugging Face directory with a chat template, such as
that of ``make smollm2``, in bf16 and float32.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.consensus.committee import Committee
from protocol.consensus.dissents import DISSENTS_MAX, VERDICTS_COUNTED
from protocol.consensus.page_node import PageNode
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, Version
from protocol.messages import ACCEPTED, WITNESSES, Signed, Verdict
from protocol.rollout.agreement import Agreement
from protocol.rollout.statistics import Recomputed, stated
from protocol.rollout.witness import WitnessPoint
from protocol.run.recipe import ModelSection, Recipe
from protocol.run.toml import load_recipe
from roles.engines.bootstrap.cold_start import cold_start
from roles.engines.bootstrap.huggingface_import import import_pretrained, section_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.calibration.calibrate import kept
from roles.engines.calibration.measurement import ClaimRecording
from roles.engines.calibration.proposal import propose
from roles.engines.files.tokenizer import HuggingFaceTokenizer
from roles.environments.base import environment, solved
from roles.ports.engines import GenerationRequest, Policy, VerificationRequest, claims_of

RECIPES = Path(__file__).parents[2] / "configs" / "runs"
ENGINES = (("sdpa", 1, 1), ("sdpa", 1 << 14, 1), ("eager", 1, 1), ("eager", 1 << 14, 2))
"""Attention kernel, tokens per prefill, and threads."""

MARGIN = 1.5
"""Factor of a calibration for machines that were not measured."""

MEMBERS, FIRST = 7, 3
POINTS_PER_SEQUENCE = 32


@dataclass(frozen=True, slots=True)
class Subject:
    """A policy with its run's rules, and the prompts of its sequences."""

    name: str
    recipe: Recipe
    model: ModelSection
    policy: Policy
    prompts: Sequence[tuple[int, ...]]
    tokens_max: int


@dataclass(frozen=True, slots=True)
class Points:
    """Values ``[engines, points]`` in nats, replays ``[engines, points]``, body's tokens."""

    values: NDArray[np.float64]
    replays: NDArray[np.int64]
    body: NDArray[np.int64]


def tiny(precision: str, folder: Path, sequences: int) -> Subject:
    """Return the testnet's recipe with a policy that solves a part of its task."""
    recipe = load_recipe((RECIPES / "testnet.toml").read_text())
    model = recipe.model.model_copy(update={"dtype": precision})
    task = environment(recipe.environment.name)
    path = folder / precision
    policy = Policy(Version(0), cold_start(solved(task), model, 0, path).digest, path)
    rng = Rng(b"prompts")
    prompts = [task.prompt(rng.bits64(), None) for _ in range(sequences)]
    name = f"testnet, {precision}"
    return Subject(name, recipe, model, policy, prompts, recipe.sampling.tokens_max)


def published(
    directory: Path, precision: str, folder: Path, sequences: int, tokens_max: int
) -> Subject:
    """Return a model that answers questions about sums and numbers."""
    recipe = load_recipe((RECIPES / "smollm2-135m.toml").read_text())
    section = recipe.model.model_copy(update={"dtype": precision})
    model = section_of(directory, section)
    path = folder / f"published-{precision}"
    policy = Policy(Version(0), import_pretrained(directory, path, model.dtype), path)
    founded_at = datetime(2026, 1, 1, tzinfo=UTC)
    tokenizer = HuggingFaceTokenizer(directory, model.vocabulary_size, founded_at)
    rng = Rng(b"prompts")
    questions = [
        f"What is {rng.below(100)} + {rng.below(100)}? Explain each step."
        if number % 2
        else f"Write three sentences about the number {rng.below(1000)}."
        for number in range(sequences)
    ]
    prompts = [tokenizer.encode_chat(question) for question in questions]
    return Subject(f"{directory.name}, {precision}", recipe, model, policy, prompts, tokens_max)


async def claimed(subject: Subject) -> list[VerificationRequest]:
    """Return honest claims, each with random points."""
    rules = subject.recipe.toploc.model_copy(update={"precision": subject.model.dtype})
    engine = TransformersGenerationEngine(subject.model, rules, batch_sequences_max=16)
    await engine.load(subject.policy)
    asked = [
        GenerationRequest(prompt, number, subject.tokens_max)
        for number, prompt in enumerate(subject.prompts)
    ]
    made = await engine.generate(asked, subject.recipe.sampling.temperature)
    engine.close()
    rng, size = Rng(b"points"), subject.model.vocabulary_size
    return [replace(one, points=points(one.tokens, size, rng)) for one in claims_of(asked, made)]


def points(tokens: Sequence[int], size: int, rng: Rng) -> tuple[WitnessPoint, ...]:
    """Return random points of one sequence."""
    found = []
    for _ in range(POINTS_PER_SEQUENCE):
        position, other = rng.below(len(tokens)), rng.below(size - 1)
        found.append(WitnessPoint(position, other + (other >= tokens[position]), rng.bits64()))
    return tuple(found)


async def recomputed(
    subject: Subject, claims: Sequence[VerificationRequest]
) -> list[list[Recomputed]]:
    """Return the results of each engine."""
    rules = subject.recipe.toploc.model_copy(update={"precision": subject.model.dtype})
    results = []
    for attention, tokens, threads in ENGINES:
        torch.set_num_threads(threads)
        engine = TransformersVerificationEngine(
            subject.model, rules, attention=attention, batch_tokens_max=tokens
        )
        await engine.load(subject.policy)
        temperature = subject.recipe.sampling.temperature
        found = await engine.recompute(subject.policy.version, claims, temperature)
        results.append([own for own in found if isinstance(own, Recomputed)])
        engine.close()
    torch.set_num_threads(1)
    return results


def calibrated(
    subject: Subject, claims: Sequence[VerificationRequest], own: Sequence[Sequence[Recomputed]]
) -> Agreement:
    """Return the limits of a run that is calibrated on these engines and sampled tokens."""
    logprobs = [one.logprobs for one in claims]
    recordings = [ClaimRecording(str(number), logprobs, one) for number, one in enumerate(own)]
    layout = {**kept(subject.recipe), "precision": subject.model.dtype}
    return Agreement.of(propose(recordings, layout, "these engines", MARGIN))


def points_of(claims: Sequence[VerificationRequest], own: Sequence[Sequence[Recomputed]]) -> Points:
    """Return the witness values of all engines."""
    every = [[value for one in engine for value in one.witness] for engine in own]
    body = [one.tokens[point.position] for one in claims for point in one.points]
    return Points(
        np.array([[value.logprob for value in engine] for engine in every]),
        np.array([[value.replay for value in engine] for engine in every]),
        np.array(body),
    )


def verdict(values: NDArray[np.float64], replays: NDArray[np.int64]) -> Verdict:
    """Return an accepting verdict with these witness values."""
    return Verdict.model_construct(
        accept=True, reason=ACCEPTED, witness=stated(values.tolist()), replays=replays.tolist()
    )


class Committees:
    """Committees of honest engines at random points."""

    def __init__(self, found: Points, limits: Agreement, seed: int) -> None:
        self._found, self.limits = found, limits
        self.rng = np.random.default_rng(seed)
        self._peers = tuple(PeerId(str(number)) for number in range(MEMBERS))
        page = PageNode(b"", 0, None, Digest(b""), -1)  # type: ignore[arg-type] - not read
        self.committee = Committee(self._peers, FIRST, MEMBERS, page, limits)

    def places(self) -> NDArray[np.int64]:
        """Return the eight points of a commit."""
        chosen: NDArray[np.int64] = self.rng.integers(len(self._found.body), size=WITNESSES)
        return chosen

    def honest(self, places: NDArray[np.int64], count: int = MEMBERS) -> list[Signed[Verdict]]:
        """Return the verdicts of random engines, by member."""
        engines = self.rng.integers(len(ENGINES), size=count)
        values, replays = self._found.values, self._found.replays
        return [
            self.signed(number, verdict(values[engine][places], replays[engine][places]))
            for number, engine in enumerate(engines)
        ]

    def signed(self, number: int, message: Verdict) -> Signed[Verdict]:
        """Return a member's verdict; nothing here reads its signature."""
        return Signed(self._peers[number], message, Digest(b""), b"")

    def lazy(self, kind: str, places: NDArray[np.int64]) -> Signed[Verdict]:
        """Return the verdict of the last member, which skips a part of the work."""
        (true,) = self.honest(places, 1)
        values = np.array(true.message.witness) / 1e9
        if kind == "invented":
            values = self.rng.choice(self._found.values[0], size=WITNESSES)
        elif kind == "mean":
            values = np.full(WITNESSES, self._found.values[0].mean())
        return self.signed(MEMBERS - 1, verdict(values, self._found.body[places]))


def false_dissents(committees: Committees, verdicts: int) -> dict[str, Any]:
    """Return disputes and dissents among honest verdicts, and the members that are named."""
    disputes = dissents = named = pairs = 0
    last: list[list[bool]] = [[] for _ in range(MEMBERS)]
    committee = committees.committee
    for _ in range(-(-verdicts // MEMBERS)):
        every = committees.honest(committees.places())
        agreeing = [committee.agrees(every[0], one) for one in every[1:]]
        pairs += agreeing.count(False)
        disputes += not all(agreeing[: FIRST - 1])
        for number, one in enumerate(every):
            is_dissent = committee.is_dissent(one, every[:number] + every[number + 1 :])
            dissents += is_dissent
            last[number] = [*last[number], is_dissent][-VERDICTS_COUNTED:]
            named += sum(last[number]) > DISSENTS_MAX
    return {
        "verdicts": -(-verdicts // MEMBERS) * MEMBERS,
        "disputes": disputes,
        "pairs_that_disagree": pairs,
        "dissents": dissents,
        "honest_named": named,
    }


def until_named(committees: Committees, kind: str, trials: int) -> dict[str, Any]:
    """Return the verdicts until a lazy member is named, over trials of 64 verdicts."""
    found = [found for _ in range(trials) if (found := _until_named(committees, kind)) is not None]
    return {
        "lazy": kind,
        "named_within_64": len(found) / trials,
        "verdicts_median": float(np.median(found)) if found else None,
        "verdicts_most": max(found, default=None),
    }


def _until_named(committees: Committees, kind: str) -> int | None:
    dissents = 0
    for number in range(1, VERDICTS_COUNTED + 1):
        places = committees.places()
        honest = committees.honest(places, MEMBERS - 1)
        dissents += committees.committee.is_dissent(committees.lazy(kind, places), honest)
        if dissents > DISSENTS_MAX:
            return number
    return None


def spread(found: Points, limits: Agreement) -> dict[str, Any]:
    """Return the differences of the engines that differ most."""
    pairs = [(one, two) for two in range(len(ENGINES)) for one in range(two)]
    errors = [np.abs(found.values[one] - found.values[two]) for one, two in pairs]
    worst = int(np.argmax([error.mean() for error in errors]))
    error, (one, two) = errors[worst], pairs[worst]
    means = error[: len(error) // WITNESSES * WITNESSES].reshape(-1, WITNESSES).mean(1)
    return {
        "points": len(error),
        "value_deviation": float(found.values[0].std()),
        "error_mean": float(error.mean()),
        "error_max": float(error.max()),
        "verdict_mean_p999": float(np.quantile(means, 0.999)),
        "verdict_mean_limit": limits.witness_sum_max / 1e9 / WITNESSES,
        "replays_differ": float((found.replays[one] != found.replays[two]).mean()),
        "replays_limit": limits.replays_max,
        "replay_is_body": float((found.replays[0] == found.body).mean()),
    }


def subjects(options: argparse.Namespace, folder: Path) -> Iterator[Subject]:
    """Yield what is measured."""
    for precision in ("fp32", "bf16"):
        yield tiny(precision, folder, options.sequences)
    if options.model is not None:
        for precision in ("fp32", "bf16"):
            yield published(
                options.model, precision, folder, options.model_sequences, options.model_tokens
            )


async def measured(subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one subject."""
    claims = await claimed(subject)
    own = await recomputed(subject, claims)
    limits, found = calibrated(subject, claims, own), points_of(claims, own)
    committees = Committees(found, limits, options.seed)
    return {
        "subject": subject.name,
        **spread(found, limits),
        **false_dissents(committees, options.verdicts),
        "lazy": [
            until_named(committees, kind, options.trials)
            for kind in ("invented", "mean", "skipped replay")
        ],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--model", type=Path, help="Hugging Face directory with a chat template")
    parser.add_argument("--model-sequences", type=int, default=48)
    parser.add_argument("--model-tokens", type=int, default=64)
    parser.add_argument("--verdicts", type=int, default=100_000)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [asyncio.run(measured(one, options)) for one in subjects(options, Path(folder))]
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    for row in rows:
        lazy = row.pop("lazy")
        print(", ".join(f"{name} {value}" for name, value in row.items()))
        for one in lazy:
            print("  ", ", ".join(f"{name} {value}" for name, value in one.items()))


if __name__ == "__main__":
    main()
