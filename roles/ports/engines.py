"""Compute: what generates, verifies and learns, and the task that scores.

Every method of an engine and of a task raises ``EngineError`` when something breaks inside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from typing import Protocol

from protocol.core.types import Digest, Version
from protocol.rollout.statistics import Measurement
from protocol.run.manifest import RunManifest

_REASON_CHARACTERS_MAX = 200
_TRACE_CHARACTERS_MAX = 8_000


class EngineError(RuntimeError):
    """Something broke inside an engine or a task: memory, a device, a driver, somebody's code.

    It is this machine's failure and nobody's fault. The role pauses, says why and tries again;
    what an engine's method documents besides has another meaning and comes as it is.
    """

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace
        """Where it broke, for the log."""

    @classmethod
    def of(cls, error: BaseException) -> "EngineError":
        """Return what broke in one bounded line.

        The traceback is kept as text: itself, it would keep alive what its frames hold, such as
        the tensors that left no memory for more.
        """
        if isinstance(error, cls):
            return cls(str(error), error.trace)
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        trace = "".join(format_exception(error))
        return cls(reason[:_REASON_CHARACTERS_MAX], trace[-_TRACE_CHARACTERS_MAX:])


@dataclass(frozen=True, slots=True)
class Patch:
    """What made a policy's file of that of policy ``base``: a file whose BLAKE3 is ``digest``.

    Somebody here has decoded it, and what came out were the policy's tensors.
    """

    base: Digest
    path: Path
    digest: Digest


@dataclass(frozen=True, slots=True)
class Policy:
    """A complete policy here: a safetensors file whose decoded tensors have ``digest``.

    Who holds the base of ``patch`` already may apply that and leave the file alone.
    """

    version: Version
    digest: Digest
    path: Path
    patch: Patch | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to sample: prompt, noise seed (64 bits), and the most tokens to emit."""

    prompt: tuple[int, ...]
    seed: int
    tokens_max: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled sequence: tokens (the end token included), their log-probabilities, proofs."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    proofs: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of a policy, and how many seconds after the end of its ``load`` it came."""

    version: Version
    seconds: float


class Engine(Protocol):
    """Computes for a role."""

    async def start(self) -> None:
        """Return when the engine answers calls: at once, unless it is in another process."""
        return  # mypy takes a method without a body for abstract


class GenerationEngine(Engine, Protocol):
    """Samples sequences and proves the computation (``protocol.toploc``).

    Calls of ``generate`` may run at the same time: as many of their sequences are computed together
    as memory holds, in the order of the calls, and the others wait. What breaks may fail all calls
    that run. A sequence is of one policy: ``load`` waits until the calls before it have ended, and
    calls after it wait for it. A cancelled call gives up its place as soon as that can be done.

    ``stage`` runs beside all of them, so that the ``load`` after it takes no time.
    """

    @property
    def tokens_sampled(self) -> int:
        """How many tokens it has sampled, those of running calls too, as far as is known here.

        The number may be some seconds old, and begins anew when the engine does.
        """

    @property
    def first_token(self) -> FirstToken | None:
        """The first token of a policy that was loaded last, or lately, once it is known here."""

    async def stage(self, policy: Policy) -> bool:
        """Read the patch of ``policy``; tell whether ``load`` can swap to it at once now.

        Not so where it is no patch of what is loaded or staged, cannot be used, or would not pay.
        """

    async def load(self, policy: Policy) -> None:
        """Swap to ``policy``: at once if it is staged, else its file is read.

        Raises ``ValueError`` when its tensors do not have its digest.
        """

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        """Sample every request with the loaded policy, in order.

        Raises ``ValueError`` for an empty prompt, no token to emit, or a temperature that is not
        positive.
        """


@dataclass(frozen=True, slots=True)
class VerificationRequest:
    """A claimed sequence to check by one prefill."""

    prompt: tuple[int, ...]
    seed: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    proofs: tuple[bytes, ...]

    @property
    def claim(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prompt and tokens, from which the states follow."""
        return self.prompt, self.tokens


def claims_of(
    requests: Sequence[GenerationRequest], generations: Sequence[Generation]
) -> list[VerificationRequest]:
    """Return what a worker that was asked and has generated claims, in order."""
    return [
        VerificationRequest(asked.prompt, asked.seed, made.tokens, made.logprobs, made.proofs)
        for asked, made in zip(requests, generations, strict=True)
    ]


class VerificationEngine(Engine, Protocol):
    """Recomputes claimed sequences by prefill."""

    async def load(self, policy: Policy) -> None:
        """Add ``policy`` to the last few that are kept; raises ``ValueError`` as others do."""

    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        """Measure every request under the policy of ``version``, in order.

        ``LookupError`` when that policy is not kept, ``ValueError`` for a temperature that is not
        positive; what cannot be computed has a ``proof_fault`` and infinite errors.
        """


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One verified sequence with its group (same prompt) and its reward.

    ``logprobs`` are those of the tokens under the policy that generated them, in nats: what its
    worker claims, until the trainer computes them itself (``TrainingEngine.recompute``).
    """

    group: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What learning from one batch did: means over its tokens, and the largest gradient norm."""

    updates: int
    """Optimiser updates: none without a gradient, or without a finite one."""
    loss: float = 0.0
    gradient_norm: float = 0.0
    """Before clipping."""
    entropy: float = 0.0
    """In nats."""
    sequences_used: int = 0
    clip_low_fraction: float = 0.0
    """Tokens without a gradient because their ratio is too small for a negative advantage."""
    clip_high_fraction: float = 0.0
    """Tokens without a gradient because their ratio is too large."""
    kl: float = 0.0
    """Estimate of the divergence between the policy that generated and the trained one, in nats:
    mean of ``r - 1 - log r`` of the ratios ``r``."""
    learning_rate: float = 0.0
    """Of the last update; 0 without one."""


class TrainingEngine(Engine, Protocol):
    """Model and optimiser: learns from verified sequences."""

    async def state_bytes_max(self) -> int:
        """Return how many bytes a state of this model takes at most."""

    async def load_policy(self, policy: Policy) -> None:
        """Start from a policy with a fresh optimiser; raises ``ValueError`` as others do."""

    async def recompute(
        self, policy: Policy, sequences: Sequence[TrainingSequence]
    ) -> list[TrainingSequence]:
        """Return whole groups with the log-probabilities under ``policy``, computed as in training.

        Sequences that teach nothing keep theirs. Raises ``ValueError`` as others do.
        """

    async def begin_step(self, batch: Sequence[TrainingSequence]) -> None:
        """Compute the gradient of the first update of a step; the weights stay as they are.

        After an ``EngineError`` of either half of a step nothing is loaded.
        """

    async def end_step(self) -> StepMetrics:
        """Learn from the batch in the run's number of updates, leaving out what is not finite."""

    async def step(self, batch: Sequence[TrainingSequence]) -> StepMetrics:
        """Begin and end a step."""
        await self.begin_step(batch)
        return await self.end_step()

    async def policy_digest(self) -> Digest:
        """Return the digest of the weights as ``write_policy`` writes them."""

    async def write_policy(self, path: Path) -> Digest:
        """Write the weights atomically, return their digest; raises ``StorageFullError``.

        A step may begin meanwhile, and must not end.
        """

    async def save_state(self, path: Path) -> None:
        """Write model, optimiser and progress atomically; raises ``StorageFullError``.

        A step may begin meanwhile, and must not end.
        """

    async def load_state(self, path: Path, policy: Digest, newer: Policy | None = None) -> None:
        """Restore what a ``save_state`` wrote, perhaps another trainer's, whose word is not taken.

        With ``newer`` the weights are those of a later policy. Raises ``ValueError``, and changes
        nothing, when the state is damaged, holds anything that this run's optimiser could not
        have, or other weights than those of ``policy``; and as others do for ``newer``.
        """

    async def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        """Decode greedily (for reports; never part of the protocol)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion, of tokens that the run's model has, for the problem of a 64-bit seed."""

    seed: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unscorable:
    """What has no score, because honest machines may differ in it, and why.

    Such as an answer whose check takes longer than a soft limit and less than a hard one: where the
    hard one ends it, on a slower machine, its score is 0.
    """

    reason: str


Score = float | Unscorable
"""What a task gives an answer: from 0 to 1, or nothing that others could rely on."""


class Environment(Protocol):
    """A task: the same seed gives the same prompt and the same scores on every machine.

    What it raises is a failure of this machine and never a verdict: an answer that cannot be
    understood scores 0, and one about which machines may differ is ``Unscorable``. It never holds
    up the event loop: what blocks or comes from a model runs elsewhere.
    """

    @property
    def name(self) -> str:
        """The name that manifests use."""

    async def open(self) -> None:
        """Read the run's files, which are here by then; called once, before anything is asked.

        Raises ``ValueError`` when they are not what they should be.
        """

    async def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits).

        It tells the model how long the completion should become, if there is a target: the length
        counts in the reward, and nobody learns to meet what it cannot know.
        """

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        """Return what the task gives each answer, in order."""

    async def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return sequences of tokens as people read them; tokens that do not exist harm nothing."""


class Engines(Protocol):
    """Makes the engine that a role needs, when it needs it."""

    def environment(self, manifest: RunManifest) -> Environment:
        """Return the run's task; raises ``ValueError`` when this software does not have it."""

    def generation(self, manifest: RunManifest) -> GenerationEngine:
        """Return an engine for an inference node."""

    def verification(self, manifest: RunManifest) -> VerificationEngine:
        """Return an engine for a validator."""

    def training(self, manifest: RunManifest) -> TrainingEngine:
        """Return an engine for a trainer."""
