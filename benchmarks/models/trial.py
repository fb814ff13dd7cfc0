"""Trial of one founded run: generate, verify, train, and compare with Hugging Face."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from made import Directory
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from typing_extensions import override

from node.local.run_pin import load_run
from node.local.system import ThreadBackground
from protocol.core.crypto import Identity, digest
from protocol.core.types import Version
from protocol.messages import RolloutCommit
from protocol.rollout.assignment import SequenceAssignment, assign
from protocol.rollout.audit import AuditResult, Past
from protocol.rollout.body import REWARD_SCALE, RolloutSequence, commit_to, encode_body
from protocol.rollout.statistics import Measurement, Recomputed, Sums
from roles.engines.builtin.generation import SampledSequence, TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.task_loader import task_of
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import (
    Generation,
    GenerationRequest,
    Policy,
    TrainingSequence,
    Unscorable,
    VerificationRequest,
    claims_of,
)
from roles.runtime.scoring import Task
from roles.validator.judgement import Judged, judge

DIFFERENCE_MAX = 1e-5
"""Maximum difference of logits, and of log-probabilities in nats."""

ROLLOUTS = 4
"""The minimum that a worker's history needs."""

COMPARED = slice(None, None, 4)
"""Compared sequences of a rollout: some of every group."""

WORKER = Identity(b"\x01" * 32)


@dataclass(frozen=True, slots=True)
class Founded:
    """Results for a directory; differences are the largest absolute ones, in nats."""

    name: str
    features: str
    logits: float
    logprobs_worker: float
    logprobs_validator: float
    logprobs_trainer: float
    tokens: int
    end_tokens: int
    end_tokens_drawn: int
    rollouts: int
    rejected: int
    lies: int
    lies_rejected: int
    updates: int

    @property
    def logprobs(self) -> tuple[float, float, float]:
        """The differences of the three engines."""
        return self.logprobs_worker, self.logprobs_validator, self.logprobs_trainer

    @property
    def within_bar(self) -> bool:
        """True if all results are as expected."""
        same = all(one <= DIFFERENCE_MAX for one in (self.logits, *self.logprobs))
        judged = not self.rejected and self.lies_rejected == self.lies
        return same and judged and self.updates > 0


class ShowingEngine(TransformersGenerationEngine):
    """Keeps the states of the last drawn tokens, for calls that are proved in one piece."""

    states: Sequence[Tensor] = ()

    @override
    def _prove(self, sampled: Iterable[SampledSequence]) -> None:
        drawn = list(sampled)
        self.states = [torch.cat([states for _, states in one.sequence.parts]) for one in drawn]
        super()._prove(drawn)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A worker's prompts, answers and rewards."""

    assignments: list[SequenceAssignment]
    requests: list[GenerationRequest]
    generations: list[Generation]
    rewards: list[int]
    commit: RolloutCommit
    body: bytes


class Trial:
    """One run: task, engines and first policy."""

    def __init__(self, directory: Path, run: Path) -> None:
        manifest = load_run(run / "run.toml").manifest
        self._directory = directory
        self._run = run
        self._manifest = manifest
        self._temperature = manifest.sampling.temperature
        self._policy = Policy(Version(0), manifest.genesis_policy, run / "genesis.safetensors")
        self._worker = ShowingEngine(manifest.model, manifest.toploc)
        self._validator = TransformersVerificationEngine(manifest.model, manifest.toploc)
        self._trainer = TorchTrainingEngine(
            manifest.model, manifest.sampling, manifest.grpo, run=manifest.run_id
        )
        self._background = ThreadBackground()
        self._environment = task_of(manifest, run / "task", self._background)
        self._task = Task(manifest, self._environment)

    async def result(self, made: Directory) -> Founded:
        """Generate, verify and train; compare; then lie."""
        await self._environment.open()
        for load in (self._worker.load, self._validator.load, self._trainer.load_policy):
            await load(self._policy)
        rollouts = [await self._roll_out(0)]
        differences = await self._differences(rollouts[0])
        rollouts += [await self._roll_out(slot) for slot in range(1, ROLLOUTS)]
        rejected = await self._rejected(rollouts)
        batch = [one for rollout in rollouts for one in self._training_sequences(rollout)]
        metrics = await self._trainer.step(batch)
        path = self._run / "next.safetensors"
        await self._worker.load(Policy(Version(1), await self._trainer.write_policy(path), path))
        lies = [await self._roll_out(slot) for slot in range(ROLLOUTS)]
        made_of = [one for rollout in rollouts for one in rollout.generations]
        ends = set(self._manifest.model.end_tokens)
        return Founded(
            name=made.name,
            features=made.features,
            **differences,
            tokens=sum(len(one.tokens) for one in made_of),
            end_tokens=len(ends),
            end_tokens_drawn=len(ends & {one.tokens[-1] for one in made_of}),
            rollouts=len(rollouts),
            rejected=len(rejected),
            lies=len(lies),
            lies_rejected=len(await self._rejected(lies)),
            updates=metrics.updates,
        )

    def close(self) -> None:
        """End the engines' threads."""
        for one in (self._worker, self._validator, self._trainer, self._background):
            one.close()

    async def _roll_out(self, slot: int) -> Rollout:
        """Generate a slot's rollout as a worker, claiming the first policy."""
        manifest = self._manifest
        checkpoint = digest(manifest.run_id)  # of a version that is never announced here
        assignments = assign(manifest, WORKER.peer_id, slot)
        prompts = await self._task.prompts(assignments)
        requests = [
            GenerationRequest(prompt, item.noise_seed, manifest.sampling.tokens_max)
            for item, prompt in zip(assignments, prompts, strict=True)
        ]
        generations = await self._worker.generate(requests, self._temperature)
        rewards = await self._rewards(assignments, [one.tokens for one in generations])
        sequences = [
            RolloutSequence(one.tokens, one.logprobs, own, one.proofs)
            for one, own in zip(generations, rewards, strict=True)
        ]
        body = encode_body(sequences)
        commit = commit_to(body, sequences, checkpoint, slot)
        return Rollout(assignments, requests, generations, rewards, commit, body)

    async def _rewards(
        self, assignments: Sequence[SequenceAssignment], answers: Sequence[tuple[int, ...]]
    ) -> list[int]:
        rewards = await self._task.rewards(assignments, answers)
        if isinstance(rewards, Unscorable):
            raise RuntimeError(rewards.reason)  # noqa: TRY004 - a machine fault
        return rewards

    async def _rejected(self, rollouts: Sequence[Rollout]) -> list[AuditResult]:
        """Verify one worker's rollouts in order; return the reasons of rejections."""
        history: list[Sums] = []
        findings = []
        for rollout in rollouts:
            finding = await self._examined(rollout, history)
            history += [] if finding.sums is None else [finding.sums]
            findings += [] if finding.accept else [finding]
        return findings

    async def _examined(self, rollout: Rollout, history: Sequence[Sums]) -> AuditResult:
        async def measure(requests: Sequence[VerificationRequest]) -> Sequence[Measurement]:
            return await self._validator.measure(Version(0), requests, self._temperature)

        commit = rollout.commit
        judged = Judged(WORKER.peer_id, commit, rollout.body)
        past = Past.of(history)
        found = await judge(self._manifest, self._task, judged, lambda: past, measure)
        if not isinstance(found, AuditResult):
            raise RuntimeError(str(found))  # noqa: TRY004 - a machine fault
        return found

    def _training_sequences(self, rollout: Rollout) -> list[TrainingSequence]:
        return [
            TrainingSequence(item.group, asked.prompt, one.tokens, one.logprobs, own / REWARD_SCALE)
            for item, asked, one, own in zip(
                rollout.assignments,
                rollout.requests,
                rollout.generations,
                rollout.rewards,
                strict=True,
            )
        ]

    async def _differences(self, rollout: Rollout) -> dict[str, float]:
        """Return the engines' differences from Hugging Face in the last generated sequences."""
        requests, made = rollout.requests[COMPARED], rollout.generations[COMPARED]
        model = AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32)
        expected = [
            logits_of(model, asked.prompt, one.tokens)
            for asked, one in zip(requests, made, strict=True)
        ]
        tensors = load_file(self._policy.path)
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
        scaling = self._manifest.model.config.get("logits_scaling", 1.0)
        logits = [states @ head.T / scaling for states in self._worker.states[COMPARED]]
        rows = [
            (own / self._temperature).log_softmax(-1).gather(1, torch.tensor(one.tokens)[:, None])
            for own, one in zip(expected, made, strict=True)
        ]
        logprobs = torch.cat(rows)[:, 0]

        def difference(own: Iterable[Sequence[float]]) -> float:
            return largest(torch.tensor([value for row in own for value in row]), logprobs)

        checked = await self._validator.recompute(
            Version(0), claims_of(requests, made), self._temperature
        )
        # Rewards that differ in each group: sequences without an advantage are not computed.
        batch = [
            replace(one, reward=number % 2)
            for number, one in enumerate(self._training_sequences(rollout)[COMPARED])
        ]
        learned = await self._trainer.recompute(self._policy, batch)
        return {
            "logits": largest(torch.cat(logits), torch.cat(expected)),
            "logprobs_worker": difference(one.logprobs for one in made),
            "logprobs_validator": difference(
                one.logprobs for one in checked if isinstance(one, Recomputed)
            ),
            "logprobs_trainer": difference(one.logprobs for one in learned),
        }


@torch.no_grad()
def logits_of(
    model: torch.nn.Module, prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> torch.Tensor:
    """Return the logits that each of ``tokens`` is drawn from, ``[n, vocabulary]``."""
    logits: Tensor = model(input_ids=torch.tensor([[*prompt, *tokens[:-1]]])).logits
    return logits[0, len(prompt) - 1 :]


def largest(own: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference; NaN if any is NaN."""
    return float((own - expected).abs().max())
