"""Training engine: one model and one AdamW, trained on batches of verified sequences."""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from protocol.core.types import Digest, RunId
from protocol.run.recipe import GrpoSection, ModelSection, SamplingSection
from roles.engines.builtin.batching import decode
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.engine import (
    BuiltinEngine,
    computed,
    computed_telling,
    give_back_memory,
    guarded,
    prepare_thread,
)
from roles.engines.files.safetensors import read_tensors
from roles.engines.files.stored_numbers import logprobs_written
from roles.engines.training.batch import (
    TrainingSample,
    answers_of,
    collate,
    deal,
    minibatches,
    pack,
    select,
)
from roles.engines.training.builder import ModelBuilder, PassSizes
from roles.engines.training.checkpoint import (
    TrainingState,
    check_moments,
    checkpoint_bytes_max,
    load_checkpoint,
    save_checkpoint,
)
from roles.engines.training.learner import Learner
from roles.engines.training.losses import token_weights, weighted_loss
from roles.engines.training.mismatch import ClaimComparison
from roles.engines.training.optimiser import learning_rate, moments_of
from roles.engines.training.outer import OuterRounds
from roles.engines.training.packed_model import PackedModel
from roles.engines.training.ranks import ALONE, Ranks
from roles.engines.training.shared_files import gathered_digest, shared_digest, write_rows
from roles.ports.engines import (
    Logprobs,
    Mismatch,
    Policy,
    StepMetrics,
    TrainingEngine,
    TrainingSequence,
)
from roles.ports.storage import StorageFullError

T = TypeVar("T")


@dataclass(slots=True)
class _Sums:
    """Totals over the tokens of one update."""

    tokens: int
    passes: list[Tensor] = field(default_factory=list)
    """The five sums of each pass of this rank ``[5]``, on its device."""
    compared: ClaimComparison = field(default_factory=ClaimComparison)
    loss: float = 0.0
    """Of the update; the other sums are over its tokens."""
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    norm: float = 0.0
    """Gradient norm before clipping."""
    updated: bool = False
    learning_rate: float = 0.0

    def add_ranks(self, ranks: Ranks) -> None:
        """Set the sums of the passes of all ranks. This waits for the device, once an update."""
        rows = torch.stack(self.passes).cpu().double() if self.passes else torch.zeros(1, 5)
        own = rows.sum(0).tolist()
        self.loss, self.clipped_low, self.clipped_high, self.entropy, self.kl = ranks.totals(own)


@dataclass(slots=True)
class _Step:
    """A step whose first gradient is computed: its totals so far, and the remaining minibatches."""

    first: _Sums | None
    """None when the batch has nothing to learn from."""
    parts: list[list[TrainingSample]]


class TorchTrainingEngine(BuiltinEngine, TrainingEngine):
    """Train on a CPU, on one GPU, or as one rank of a group, by the run's loss.

    Master weights, their gradients and the optimizer are float32. The model computes with the
    policy's weights, in their precision and as validators do, so a ratio is 1 before the first
    update. Sequences are packed into passes of ``pass_tokens``, which the ranks share (None: as
    ``builder.PassSizes``). With ``checkpointing`` a decoder layer keeps only its input and is
    recomputed in the backward pass (None: in passes with too large activations). Neither changes
    the result beyond rounding. Files are written in another thread while a step computes its first
    gradient.

    All ranks get the same calls in the same order, and return the same results.

    With ``grpo.outer``, a version is a round of several trainers: at most so many steps, then
    ``write_difference`` and ``apply_differences``. A state is that of a round's beginning.
    """

    def __init__(
        self,
        model: ModelSection,
        sampling: SamplingSection,
        grpo: GrpoSection,
        *,
        run: RunId | None = None,
        pass_tokens: int | None = None,
        checkpointing: bool | None = None,
        device: str = "cpu",
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(model, model.dtype, device)
        sizes = PassSizes.of(
            self._config, self._dtype, device, pass_tokens, checkpointing, ranks.count
        )
        self._builder = ModelBuilder(
            model,
            self._config,
            sampling,
            grpo,
            run,
            kept_tokens_max=sizes.kept_tokens_max,
            device=device,
            ranks=ranks,
        )
        self._ranks = ranks
        self._head_precision = model.head
        self._grpo, self._loss = grpo, grpo.loss
        self._rounds = None if grpo.outer is None else OuterRounds(grpo.outer, grpo, ranks)
        answers = grpo.rollouts_per_step * sampling.prompts_per_rollout * sampling.group_size
        self._constant = answers * sampling.tokens_max / grpo.updates_per_version
        self._pass_tokens = sizes.tokens
        self._steps = 0
        """Updates of the optimiser."""
        self._version = 0
        self._learner: Learner | None = None
        self._step: _Step | None = None
        self._writer = ThreadPoolExecutor(1, "writer", prepare_thread)

    @override
    def close(self) -> None:
        super().close()
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def _written(self, method: "Callable[[TorchTrainingEngine, Path], T]", path: Path) -> T:
        within = guarded(method, StorageFullError)
        return await asyncio.wrap_future(self._writer.submit(within, self, path))

    @override
    async def state_bytes_max(self) -> int:
        return checkpoint_bytes_max(self._shapes, outer=self._rounds is not None)

    def _loaded(self) -> Learner:
        if self._learner is None:
            raise RuntimeError("no policy is loaded")
        return self._learner

    @override
    def _read(self, policy: Policy) -> dict[str, Tensor]:
        """Return a policy's tensors, of which the ranks share the check."""
        tensors, _ = self._ranks.together(lambda: read_tensors(policy.path, self._shapes))
        if shared_digest(tensors, self._ranks) != policy.digest:
            raise ValueError(f"{policy.path} does not hold the policy {policy.digest.hex()}")
        return tensors

    @override
    @computed_telling(ValueError)
    def load_policy(self, policy: Policy) -> None:
        self._learner = self._builder.learner(self._read(policy))
        self._steps, self._version, self._step = 0, int(policy.version), None
        if self._rounds is not None:
            self._rounds.start(self._learner.masters)

    @override
    @computed_telling(ValueError, StorageFullError)
    def recompute(
        self, policy: Policy, sequences: Sequence[TrainingSequence], path: Path | None = None
    ) -> list[TrainingSequence]:
        self._forget_gradients()  # frees memory for these weights
        model = self._builder.model(self._read(policy))
        own = self._logprobs(model, self._selected(sequences))
        del model
        kept = self._ranks.together(partial(self._kept, own, path))
        del own  # so that its memory is given back below
        found = list(sequences)
        for place, logprobs in chain.from_iterable(self._ranks.exchange(kept)):
            claim = sequences[place]
            found[place] = replace(claim, logprobs=logprobs, claimed=claim.logprobs)
        give_back_memory()
        return found

    def _kept(
        self, own: Iterable[tuple[TrainingSample, Tensor]], path: Path | None
    ) -> list[tuple[int, Logprobs]]:
        """Return the places of samples with their log-probabilities, in a file of this rank."""
        if path is None:
            return [(one.place, tuple(known.tolist())) for one, known in own]
        with logprobs_written(path.with_name(f"{path.name}-{self._ranks.rank}")) as writer:
            return [(one.place, writer.write(known)) for one, known in own]

    def _selected(self, sequences: Sequence[TrainingSequence]) -> list[TrainingSample]:
        divide = self._loss.advantage == "group"
        return select(sequences, divide=divide, masks_cut=self._loss.mask_truncated)

    def _own(self, passes: list[list[TrainingSample]]) -> list[list[TrainingSample]]:
        """Return this rank's passes."""
        return deal(passes, self._ranks.count)[self._ranks.rank]

    @torch.no_grad()
    def _logprobs(
        self, model: PackedModel, samples: Sequence[TrainingSample]
    ) -> list[tuple[TrainingSample, Tensor]]:
        """Return the samples of this rank's passes with their tokens' log-probabilities."""
        found: list[tuple[TrainingSample, Tensor]] = []
        for members in self._own(pack(samples, self._pass_tokens)):
            logprobs, _ = model(collate(members, self._device))
            if members[0].weight:
                found += zip(members, answers_of(members, logprobs), strict=True)
        model.let_go()
        return found

    @override
    @computed
    def begin_step(self, batch: Sequence[TrainingSequence]) -> None:
        parts = minibatches(self._selected(batch), self._grpo.updates_per_version)
        if self._rounds is not None:
            self._rounds.check_open()
        with self._whole_or_unloaded():
            if self._loss.importance_cap is not None:
                parts[1:] = [self._with_old_logprobs(part) for part in parts[1:]]
            self._step = _Step(self._gradient(parts[0]) if parts else None, parts)

    def _with_old_logprobs(self, samples: list[TrainingSample]) -> list[TrainingSample]:
        """Add the log-probabilities before the first update; its own minibatch needs none.

        Those of this rank's passes: the minibatch is packed into the same ones again.
        """
        own = self._logprobs(self._loaded().model, samples)
        known = {sample.place: logprobs for sample, logprobs in own}
        return [replace(one, old_logprobs=known.get(one.place, ())) for one in samples]

    @override
    @computed
    def end_step(self) -> StepMetrics:
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("no step has begun")
        done: list[_Sums] = []
        with self._whole_or_unloaded():
            for number, part in enumerate(step.parts):
                sums = step.first if step.first is not None and not number else self._gradient(part)
                self._update(sums, number)
                done.append(sums)
        if self._rounds is None:
            self._version = min(self._version + 1, self._grpo.steps)
        else:
            self._rounds.steps += 1
        give_back_memory()
        first: tuple[Mismatch | None, Mismatch | None] = (None, None)
        if step.first is not None:
            first = step.first.compared.result(self._loss, self._ranks)
        tokens = max(1, sum(sums.tokens for sums in done))
        return StepMetrics(
            updates=sum(sums.updated for sums in done),
            loss=sum(sums.loss * sums.tokens for sums in done) / tokens,
            gradient_norm=max((sums.norm for sums in done), default=0.0),
            entropy=sum(sums.entropy for sums in done) / tokens,
            sequences_used=sum(map(len, step.parts)),
            clip_low_fraction=sum(sums.clipped_low for sums in done) / tokens,
            clip_high_fraction=sum(sums.clipped_high for sums in done) / tokens,
            kl=sum(sums.kl for sums in done) / tokens,
            learning_rate=max((sums.learning_rate for sums in done), default=0.0),
            mismatch=first[0],
            engine_mismatch=first[1],
            memory_peak_bytes=self._ranks.memory_peaks(self._device),
        )

    @contextmanager
    def _whole_or_unloaded(self, *harmless: type[Exception]) -> Iterator[None]:
        """Unload on an error: weights may be half updated, and the next load needs the memory."""
        try:
            yield
        except harmless:
            raise
        except BaseException:
            self._learner = None
            raise

    def _forget_gradients(self) -> None:
        self._loaded().forget_gradients()
        self._step = None

    def _gradient(self, samples: Sequence[TrainingSample]) -> _Sums:
        """Compute the gradient of an update; its sums are over the passes of all ranks."""
        self._forget_gradients()
        learner = self._loaded()
        lengths = [len(sample.tokens) for sample in samples]
        weights = token_weights(self._loss.aggregation, lengths, self._constant)
        weighted = [replace(one, weight=own) for one, own in zip(samples, weights, strict=True)]
        sums = _Sums(sum(lengths))
        for members in self._own(pack(weighted, self._pass_tokens)):
            self._accumulate(learner.model, members, sums)
        learner.take_gradients()
        sums.add_ranks(self._ranks)
        return sums

    def _accumulate(
        self, model: PackedModel, members: Sequence[TrainingSample], sums: _Sums
    ) -> None:
        """Add the gradient of a pass: its tokens have their weights in the whole update."""
        packed = collate(members, self._device)
        logprobs, entropies = model(packed)
        loss, found = weighted_loss(self._loss, packed, logprobs, entropies)
        torch.autograd.backward(loss)
        if not members[0].weight:
            return
        clipped, log_ratios = found.clipped, found.log_ratios
        low, high = (clipped & (log_ratios < 0)).sum(), (clipped & (log_ratios > 0)).sum()
        moved = (logprobs - packed.behaviour_logprobs).detach()
        kl = (moved.expm1() - moved).sum()
        totals = loss.detach(), low, high, entropies.detach().sum(), kl
        sums.passes.append(torch.stack([total.float() for total in totals]))
        sums.compared.add(members, logprobs.detach())

    def _update(self, sums: _Sums, number: int) -> None:
        """Step the optimizer if everything is finite; record the gradient norm before clipping.

        ``number``: that of the update in its step, from 0.
        """
        learner = self._loaded()
        norm = learner.gradient_norm()
        sums.norm = float(norm)
        sums.updated = math.isfinite(sums.norm) and math.isfinite(sums.loss)
        if sums.updated:
            done, settings = self._progress()
            sums.learning_rate = learning_rate(settings, self._steps, done + number)
            learner.update(norm, self._grpo.gradient_clip, sums.learning_rate)
            # A round that begins again repeats updates: the number is capped.
            self._steps = min(self._steps + 1, settings.steps * settings.updates_per_version)

    def _progress(self) -> tuple[int, GrpoSection]:
        """Return the updates of the run before this step, and settings with those of a version."""
        rounds, updates = self._rounds, self._grpo.updates_per_version
        if rounds is None:
            return self._version * updates, self._grpo
        versions = self._version * rounds.settings.updates_per_version
        return versions + rounds.steps * updates, rounds.settings

    def _outer(self) -> OuterRounds:
        if self._rounds is None:
            raise RuntimeError("the run has no outer steps (grpo.outer)")
        return self._rounds

    @override
    @computed
    def begin_round(self) -> None:
        rounds, learner = self._outer(), self._loaded()
        self._forget_gradients()
        if rounds.steps:  # otherwise files may be written from the weights meanwhile
            with self._whole_or_unloaded():
                learner.replace(rounds.optimizer.weights)
            rounds.steps = 0

    @override
    async def write_difference(self, path: Path) -> Digest:
        return await self._written(TorchTrainingEngine._write_difference, path)

    def _write_difference(self, path: Path) -> Digest:
        return self._outer().optimizer.write(path, self._loaded().masters, self._shapes)

    @override
    @computed_telling(ValueError)
    def check_difference(self, difference: Digest, path: Path) -> None:
        self._outer().optimizer.check(difference, path, self._shapes)

    @override
    @computed_telling(ValueError)
    def apply_differences(self, files: Sequence[tuple[Digest, Path]]) -> None:
        rounds, learner = self._outer(), self._loaded()
        with self._whole_or_unloaded(ValueError):
            rounds.optimizer.step(files, self._shapes)
            self._forget_gradients()
            learner.replace(rounds.optimizer.weights)
        rounds.steps = 0
        self._version = min(self._version + 1, self._grpo.steps)

    @override
    @computed
    def policy_digest(self) -> Digest:
        return gathered_digest(self._loaded().rows(), self._shapes, self._ranks, self._dtype)

    @override
    async def write_policy(self, path: Path) -> Digest:
        # Taken before a step begins: while it computes, ranks have whole parameters in the model.
        rows = guarded(TorchTrainingEngine._rows)(self)

        def write(self: TorchTrainingEngine, path: Path) -> Digest:
            return write_rows(path, rows, self._shapes, self._ranks.writer, dtype=self._dtype)

        return await self._written(write, path)

    def _rows(self) -> dict[str, Tensor]:
        return self._loaded().rows()

    @override
    async def save_state(self, path: Path) -> None:
        await self._written(TorchTrainingEngine._save_state, path)

    def _save_state(self, path: Path) -> None:
        learner = self._loaded()
        state = TrainingState(
            weights={name: master.detach() for name, master in learner.masters.items()},
            first_moments=moments_of(learner.optimizer, learner.masters, "exp_avg"),
            second_moments=moments_of(learner.optimizer, learner.masters, "exp_avg_sq"),
            steps=self._steps,
            version=self._version,
            outer_momentum=None if self._rounds is None else self._rounds.momentum(),
        )
        save_checkpoint(state, path, self._shapes, self._ranks.writer)

    @override
    @computed_telling(ValueError)
    def load_state(self, path: Path, policy: Digest, newer: Policy | None = None) -> None:
        ranks = self._ranks
        rounds = self._rounds
        if rounds is not None and newer is not None:
            raise ValueError(f"{path}: the outer momentum is not that of {newer.digest.hex()}")
        state = load_checkpoint(path, self._shapes, ranks, outer=rounds is not None)
        updates, total = self._progress()[1].updates_per_version, self._grpo.steps
        versions = state.version if rounds is None else total  # rounds begin again
        if not 0 <= state.version <= total or not 0 <= state.steps <= versions * updates:
            claim = f"{state.steps} steps for version {state.version}"
            raise ValueError(f"{path} claims {claim}, more than the run has")
        if shared_digest(state.weights, ranks, self._builder.policy) != policy:
            raise ValueError(f"{path} does not hold the weights of policy {policy.hex()}")
        capped = rounds is not None and state.steps == total * updates
        check_moments(state, self._grpo.adam_betas, ranks, capped=capped)
        momentum = None if rounds is None else rounds.checked_momentum(state)
        learner = self._builder.learner(state.weights if newer is None else self._read(newer))
        for name, master in learner.masters.items():
            learner.optimizer.state[master] = {
                "step": torch.tensor(float(state.steps), device=self._device),
                "exp_avg": ranks.rows(state.first_moments[name]).to(self._device),
                "exp_avg_sq": ranks.rows(state.second_moments[name]).to(self._device),
            }
        self._learner, self._steps, self._step = learner, state.steps, None
        self._version = state.version if newer is None else int(newer.version)
        if rounds is not None:
            rounds.start(learner.masters, momentum)

    @override
    @computed
    def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        if not prompts:
            return []
        # In the policies' precision: the report is about the model that workers run.
        rows, ranks = self._loaded().rows(), self._ranks
        decoder = Decoder(
            self._config,
            {n: ranks.gathered(own.to(self._dtype), self._shapes[n]) for n, own in rows.items()},
            self._dtype,
            self._device,
            self._head_precision,
        )
        decoded = decode(decoder, prompts, [tokens_max] * len(prompts), 1.0, lambda *_: None)
        return [tuple(row.tokens.tolist()) for row in decoded]
