"""Engines that generate, verify and train, and the task that scores completions.

Every method of an engine or a task raises ``EngineError`` when it fails internally.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exception
from typing import Protocol

from protocol.core.types import Digest, Version
from protocol.rollout.statistics import Measurement
from protocol.rollout.witness import WitnessPoint
from protocol.run.manifest import RunManifest

_REASON_CHARACTERS_MAX = 200
_TRACE_CHARACTERS_MAX = 8_000


class EngineError(RuntimeError):
    """Internal failure of an engine or a task: memory, device, driver or third-party code.

    It is a failure of this machine, not evidence against a peer. The role reports it, pauses and
    retries. Other documented exceptions keep their own meaning.
    """

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace
        """Traceback, for the log."""

    @classmethod
    def of(cls, error: BaseException) -> "EngineError":
        """Describe ``error`` in one line of bounded length.

        The traceback is kept as text: a traceback object would keep the tensors of its frames in
        memory.
        """
        if isinstance(error, cls):
            return cls(str(error), error.trace)
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        trace = "".join(format_exception(error))
        return cls(reason[:_REASON_CHARACTERS_MAX], trace[-_TRACE_CHARACTERS_MAX:])


@dataclass(frozen=True, slots=True)
class Patch:
    """Patch file with BLAKE3 ``digest`` that turns the file of policy ``base`` into a new policy.

    This node has decoded it and has verified that it yields the policy's tensors.
    """

    base: Digest
    path: Path
    digest: Digest


@dataclass(frozen=True, slots=True)
class Policy:
    """Complete policy on this node: a safetensors file whose decoded tensors have ``digest``.

    An engine that holds the base of ``patch`` may apply the patch instead of reading the file.
    """

    version: Version
    digest: Digest
    path: Path
    patch: Patch | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to sample: prompt, noise seed (64 bits), and maximum number of tokens."""

    prompt: tuple[int, ...]
    seed: int
    tokens_max: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled sequence: tokens with the end token, their log-probabilities, and proofs."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    proofs: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """First token sampled from a policy: seconds from the end of its ``load``."""

    version: Version
    seconds: float


class Engine(Protocol):
    """Base of the engines of all roles."""

    async def start(self) -> None:
        """Wait until the engine answers calls; an engine in this process does so at once."""
        return  # mypy takes a method without a body for abstract


class GenerationEngine(Engine, Protocol):
    """Samples sequences and proves the computation (``protocol.toploc``).

    Calls of ``generate`` may run concurrently. The engine batches as many sequences as fit in
    memory, in call order; the others wait. A failure may fail all running calls. Each sequence is
    sampled from one policy: ``load`` waits for the calls before it, and later calls wait for
    ``load``. A cancelled call frees its batch slots as soon as possible.

    ``stage`` runs concurrently with all of them, so that the ``load`` after it takes no time.
    """

    @property
    def tokens_sampled(self) -> int:
        """Number of tokens sampled so far, including those of running calls.

        The value may lag by some seconds, and restarts at 0 when the engine restarts.
        """

    @property
    def first_token(self) -> FirstToken | None:
        """First token of the policy loaded last, or of a recent one; None until it is known."""

    async def stage(self, policy: Policy) -> bool:
        """Read the patch of ``policy``; return True when ``load`` can then swap to it at once.

        Return False when its base is neither loaded nor staged, or when it is unusable or not
        worthwhile.
        """

    async def load(self, policy: Policy) -> None:
        """Swap to ``policy``: at once if it is staged, else by reading its file.

        Raises ``ValueError`` when the digest of its tensors differs.
        """

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        """Sample every request with the loaded policy, in order.

        Raises ``ValueError`` for an empty prompt, ``tokens_max`` below 1 or a temperature that is
        not positive.
        """


@dataclass(frozen=True, slots=True)
class VerificationRequest:
    """Claimed sequence to verify by one prefill, with the points of its witness values."""

    prompt: tuple[int, ...]
    seed: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    proofs: tuple[bytes, ...]
    points: tuple[WitnessPoint, ...] = ()

    @property
    def claim(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prompt and tokens; they determine the hidden states."""
        return self.prompt, self.tokens


def claims_of(
    requests: Sequence[GenerationRequest], generations: Sequence[Generation]
) -> list[VerificationRequest]:
    """Pair requests with their generations as claims to verify, in order."""
    return [
        VerificationRequest(asked.prompt, asked.seed, made.tokens, made.logprobs, made.proofs)
        for asked, made in zip(requests, generations, strict=True)
    ]


class VerificationEngine(Engine, Protocol):
    """Recomputes claimed sequences by prefill."""

    async def load(self, policy: Policy) -> None:
        """Add ``policy`` to the few kept; raises ``ValueError`` as ``GenerationEngine.load``."""

    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        """Measure every request under the policy of ``version``, in order.

        Each measurement has the witness values of its request's points, in order.
        Raises ``LookupError`` when that policy is not kept, ``ValueError`` for a temperature that
        is not positive. A request that cannot be computed gets a ``proof_fault`` and infinite
        errors.
        """


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """Numbers of four bytes each in a file on this machine, in its byte order.

    Token ids are int32, log-probabilities float32. ``first`` and ``count`` are in numbers.
    """

    path: Path
    first: int
    count: int

    def __len__(self) -> int:
        """Return the number of numbers."""
        return self.count


TokenIds = tuple[int, ...] | StoredNumbers
"""Token ids in memory, or where an engine reads them."""

Logprobs = tuple[float, ...] | StoredNumbers
"""Log-probabilities in nats, in memory, or where an engine reads them."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One verified sequence with its group (same prompt) and its reward.

    ``logprobs`` are those of the tokens under the generating policy: the worker's claims until the
    trainer recomputes them (``TrainingEngine.recompute``). ``claimed`` are the claims then, and
    None before. ``lag`` is the number of versions published since that policy.
    ``reference_logprobs`` are those under the genesis policy, empty unless the run's loss needs
    them. ``ended`` is False if the length limit cut the answer.
    """

    group: int
    prompt: TokenIds
    tokens: TokenIds
    logprobs: Logprobs
    reward: float
    claimed: Logprobs | None = None
    lag: int = 0
    reference_logprobs: Logprobs = ()
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Difference between the log-probabilities of workers and of the trainer, at some tokens."""

    mean: float
    """Mean of the absolute differences, in nats."""
    p99: float
    """Their 99 % quantile."""
    beyond_clip: float
    """Fraction of tokens whose ratio is outside of the clip range, ``1 - epsilon`` to
    ``1 + epsilon_high``."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one training step: means over its tokens, and the largest gradient norm."""

    updates: int
    """Optimiser updates; 0 without a finite gradient."""
    loss: float = 0.0
    """Of the run's kind and aggregation; the mean of the updates, by their tokens."""
    gradient_norm: float = 0.0
    """Before clipping."""
    entropy: float = 0.0
    """In nats."""
    sequences_used: int = 0
    clip_low_fraction: float = 0.0
    """Tokens without a gradient because their ratio is too small for a negative advantage; with
    CISPO, tokens of a bounded gradient."""
    clip_high_fraction: float = 0.0
    """Tokens without a gradient because their ratio is too large."""
    kl: float = 0.0
    """Estimated divergence between the generating and the trained policy, in nats: the mean of
    ``r - 1 - log r`` of the ratios ``r``."""
    learning_rate: float = 0.0
    """Rate of the last update; 0 without one."""
    mismatch: Mismatch | None = None
    """Of the workers' claims and the weights at the start of the step, at the tokens of its first
    update; None without tokens."""
    engine_mismatch: Mismatch | None = None
    """The same for pairs under the same weights; None without such tokens."""
    memory_peak_bytes: tuple[int, ...] = field(default=(), compare=False)
    """Largest memory of each rank since it began, in the order of ranks: what torch has allocated
    on a GPU, and otherwise the resident memory of the process. Empty if it is unknown. Equal steps
    may differ in it."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Place of a process in a group of ``ranks`` processes that compute one engine's calls.

    ``rendezvous`` is the path of a file that the group creates to find each other; empty for a
    group of one.
    """

    rank: int = 0
    ranks: int = 1
    rendezvous: str = ""


class TrainingEngine(Engine, Protocol):
    """Model and optimiser that learn from verified sequences."""

    @property
    def ranks(self) -> int:
        """Number of processes that compute a step; other numbers round sums differently."""
        return 1

    async def state_bytes_max(self) -> int:
        """Return the largest size of a state of this model, in bytes."""

    async def load_policy(self, policy: Policy) -> None:
        """Start from a policy with a fresh optimiser, and without outer momentum.

        Raises ``ValueError`` for a bad digest.
        """

    async def recompute(
        self, policy: Policy, sequences: Sequence[TrainingSequence], path: Path | None = None
    ) -> list[TrainingSequence]:
        """Return whole groups with the log-probabilities under ``policy``, computed as in training.

        Sequences with zero advantage keep theirs. The others are written to ``path``, if there is
        one, and replace that file. Raises ``ValueError`` as ``load_policy``, ``StorageFullError``.
        """

    async def begin_step(self, batch: Sequence[TrainingSequence]) -> None:
        """Compute the gradient of a step's first update, without changing the weights.

        After an ``EngineError`` in either half of a step, no policy is loaded.
        """

    async def end_step(self) -> StepMetrics:
        """Apply the run's number of updates, skipping those that are not finite."""

    async def step(self, batch: Sequence[TrainingSequence]) -> StepMetrics:
        """Begin and end a step."""
        await self.begin_step(batch)
        return await self.end_step()

    async def policy_digest(self) -> Digest:
        """Return the digest of the weights that ``write_policy`` would write."""

    async def write_policy(self, path: Path) -> Digest:
        """Write the weights atomically, return their digest; raises ``StorageFullError``.

        ``begin_step`` may run meanwhile, ``end_step`` must not.
        """

    async def save_state(self, path: Path) -> None:
        """Write model, optimiser and progress atomically; raises ``StorageFullError``.

        ``begin_step`` may run meanwhile, ``end_step`` must not. In a run with ``grpo.outer`` it
        raises ``RuntimeError`` between the first step of a round and its end.
        """

    async def load_state(self, path: Path, policy: Digest, newer: Policy | None = None) -> None:
        """Restore a saved state; it may come from another trainer, so it is validated.

        With ``newer``, the weights are those of that later policy. Raises ``ValueError`` and
        changes nothing when the state is damaged, does not fit this run's optimiser, or holds other
        weights than those of ``policy``; also when ``newer`` cannot be loaded. A run with
        ``grpo.outer`` has no ``newer``, because the outer momentum is that of the state's weights.
        """

    # Rounds of several trainers. They raise ``RuntimeError`` in a run without ``grpo.outer``.

    async def begin_round(self) -> None:
        """Return to the weights of the newest version or outer step; the moments stay.

        A step that has begun is dropped. Version files may be written meanwhile if no step has
        ended since then.
        """

    async def write_difference(self, path: Path) -> Digest:
        """Write by how much the steps of this round moved the weights, atomically.

        Return the digest of the file's tensors. Raises ``StorageFullError``. Nothing else may run.
        """

    async def check_difference(self, difference: Digest, path: Path) -> None:
        """Check a difference of any trainer; raises ``ValueError`` for one that cannot be right.

        Its tensors must have this digest, and be within what a round can move the weights of the
        newest version or outer step. A running ``begin_step`` delays the check.
        """

    async def apply_differences(self, files: Sequence[tuple[Digest, Path]]) -> None:
        """Take the outer step by the mean of differences, in this order, and end the round.

        Every trainer that applies the same files to the same version gets the same bits, also
        without a step in this round. Raises ``ValueError`` without a file, and for one that
        ``check_difference`` refuses; nothing changes then. Nothing else may run.
        """

    async def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        """Decode greedily, for reports only; the protocol does not use it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Completion for the problem of a 64-bit seed; all tokens are in the run's vocabulary."""

    seed: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unscorable:
    """Answer without a score, with the reason: honest machines may disagree on it.

    Example: a check that takes longer than the soft limit and less than the hard one. A slower
    machine reaches the hard limit and scores it 0.
    """

    reason: str


Score = float | Unscorable
"""Score of an answer from 0 to 1, or ``Unscorable``."""


class Environment(Protocol):
    """Task: a seed gives the same prompt and the same scores on every machine.

    An exception is a failure of this machine, never a verdict: an unreadable answer scores 0, and
    one on which machines may disagree is ``Unscorable``. Methods never block the event loop:
    blocking code and model output run elsewhere.
    """

    @property
    def name(self) -> str:
        """Name in manifests."""

    async def open(self) -> None:
        """Read the run's files; called once, before all other methods.

        Raises ``ValueError`` for invalid files.
        """

    async def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits).

        The prompt states the length target, if there is one: the length counts in the reward, so
        the model must know it.
        """

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        """Return the score of each answer, in order."""

    async def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Decode sequences of tokens for people; unknown tokens are harmless."""


class Engines(Protocol):
    """Factory of the run's task and of the engine of each role."""

    def environment(self, manifest: RunManifest) -> Environment:
        """Return the run's task; raises ``ValueError`` when this software lacks it."""

    def generation(self, manifest: RunManifest) -> GenerationEngine:
        """Return an engine for an inference node."""

    def verification(self, manifest: RunManifest) -> VerificationEngine:
        """Return an engine for a validator."""

    def training(self, manifest: RunManifest) -> TrainingEngine:
        """Return an engine for a trainer."""
