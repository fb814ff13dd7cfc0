"""Everything that a node touches outside itself, as interfaces.

The daemon and the role flows know only these; ``node.live`` implements them on hivemind, SQLite and
files, ``simulations`` on virtual time. Sleeping is ``asyncio.sleep``: the event loop is a port too.
Every call that waits for another node has a deadline at the caller (``asyncio.timeout``).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.audit import Measurement
from protocol.types import Digest, PeerId, Version


class TransportError(Exception):
    """A peer could not be reached, or a stream broke; the caller tries another peer or later."""


class StorageFullError(Exception):
    """The disk, or the quota set for it, has no room; the node pauses what needs room."""


class Clock(Protocol):
    """The wall clock."""

    def now(self) -> float:
        """Return unix seconds."""


class Stream(Protocol):
    """One bidirectional byte stream to one peer."""

    @property
    def peer(self) -> PeerId:
        """The authenticated remote end."""

    async def read(self, bytes_max: int) -> bytes:
        """Return 1 to ``bytes_max`` bytes, or ``b""`` at the end of the stream."""

    async def read_exactly(self, count: int) -> bytes:
        """Return ``count`` bytes; raises ``TransportError`` when the stream ends before."""

    async def write(self, data: bytes) -> None:
        """Send ``data``, waiting while the peer's window is full; raises ``TransportError``."""

    def offer(self, data: bytes) -> bool:
        """Send ``data`` if nothing waits before it; False when it was not sent: use ``write``."""

    async def close(self) -> None:
        """Close both directions; idempotent, never raises."""


StreamHandler = Callable[[Stream], Awaitable[None]]


class Streams(Protocol):
    """What a protocol over streams needs: to serve, and to open a stream to a peer."""

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Open a stream for ``protocol``; raises ``TransportError``, also if not supported."""

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve ``protocol``; each inbound stream runs ``handler`` and is closed after it."""


class Transport(Streams, Protocol):
    """Authenticated connections and streams between peers."""

    async def addresses(self) -> list[str]:
        """Return our dialable multiaddresses, each ending in ``/p2p/<peer id>``."""

    async def connect(self, address: str) -> PeerId:
        """Dial a multiaddress with ``/p2p/<peer id>``; raises ``TransportError``."""

    async def disconnect(self, peer: PeerId) -> None:
        """Drop every connection to ``peer``; idempotent."""

    async def peers(self) -> list[PeerId]:
        """Return the peers that are connected now."""


class Directory(Protocol):
    """A shared, weakly consistent map with sub-keys and expiry: a hint for addresses only."""

    async def publish(self, key: str, value: bytes, expires_at: float) -> bool:
        """Store our ``value`` under ``key`` and our own peer id; False if nobody took it."""

    async def lookup(self, key: str) -> Mapping[PeerId, bytes]:
        """Return what each peer stored under ``key`` and has not expired; possibly stale."""


class PartialBlob(Protocol):
    """A blob that is arriving: verified chunk by chunk, readable while it grows, resumable."""

    def missing(self) -> list[int]:
        """Return the indices of the chunks that are not here yet, ascending."""

    async def write_chunk(self, index: int, data: bytes) -> bool:
        """Store a chunk if its digest fits; False means that the sender sent bad bytes."""


class Blobs(Protocol):
    """Content-addressed bytes; what comes out was verified on its way in."""

    async def put(self, data: bytes) -> Digest:
        """Store ``data`` durably; raises ``StorageFullError``."""

    async def put_file(self, path: Path, offset: int, length: int) -> Digest:
        """Store a slice of a file without holding it in memory; raises ``StorageFullError``."""

    async def chunk_digests(self, digest: Digest, chunk_bytes: int) -> tuple[Digest, ...]:
        """Return the digests of a blob's chunks; raises ``LookupError`` when it is not here."""

    async def get(self, digest: Digest) -> bytes | None:
        """Return the whole blob, or None when it is not (completely) here."""

    def size(self, digest: Digest) -> int | None:
        """Return the length in bytes of a blob that is here or arriving, else None."""

    def has(self, digest: Digest) -> bool:
        """Tell whether the blob is here completely."""

    async def open_partial(
        self, digest: Digest, length: int, chunk_bytes: int, chunks: Sequence[Digest]
    ) -> PartialBlob:
        """Start or resume the arrival of a blob; raises ``StorageFullError``."""

    def stream(self, digest: Digest, offset: int, length: int) -> AsyncIterator[bytes]:
        """Yield a range, waiting for chunks that are still arriving (cut-through)."""

    async def concatenate(self, digests: Sequence[Digest], path: Path) -> None:
        """Write blobs one after another to ``path`` atomically; raises ``StorageFullError``."""

    async def delete(self, digest: Digest) -> None:
        """Forget a blob; idempotent."""

    def file_bytes(self, path: Path) -> int | None:
        """Return the length of a file that an engine or ``concatenate`` wrote, None without one."""

    def delete_file(self, path: Path) -> None:
        """Delete such a file; idempotent."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set ``table[key]`` to ``value``."""

    table: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove ``table[key]`` if it is there."""

    table: str
    key: bytes


class Store(Protocol):
    """Durable small state: named tables of bytes to bytes."""

    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        """Apply all changes or none; when it returns they survive ``kill -9`` and power loss."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a table in key order."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A complete policy here: a safetensors file whose decoded tensors have ``digest``."""

    version: Version
    digest: Digest
    path: Path


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


class GenerationEngine(Protocol):
    """Samples sequences and proves the computation (``protocol.toploc``)."""

    async def load(self, policy: Policy) -> None:
        """Swap to ``policy``; raises ``ValueError`` when its tensors do not have its digest."""

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        """Sample every request with the loaded policy, in order."""


@dataclass(frozen=True, slots=True)
class VerificationRequest:
    """A claimed sequence to check by one prefill."""

    prompt: tuple[int, ...]
    seed: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    proofs: tuple[bytes, ...]


class VerificationEngine(Protocol):
    """Recomputes claimed sequences by prefill."""

    async def load(self, policy: Policy) -> None:
        """Make ``policy`` available; the engine keeps the last few it was given."""

    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        """Measure every request under the policy of ``version``, in order."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One verified sequence with its group (same prompt) and its reward."""

    group: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one optimiser step did; ``applied`` is False when the finite guard refused it."""

    applied: bool
    loss: float
    gradient_norm: float
    clip_fraction: float
    entropy: float
    sequences_used: int


class TrainingEngine(Protocol):
    """Model and optimiser: learns from verified sequences."""

    async def load_policy(self, policy: Policy) -> None:
        """Start from a policy with a fresh optimiser."""

    async def step(self, batch: Sequence[TrainingSequence]) -> StepMetrics:
        """Do one optimiser step on ``batch`` (advantages recomputed inside)."""

    async def write_policy(self, path: Path) -> Digest:
        """Write the weights as safetensors atomically; return the policy digest."""

    async def save_state(self, path: Path) -> None:
        """Write model, optimiser and progress atomically."""

    async def load_state(self, path: Path) -> None:
        """Restore what ``save_state`` wrote; raises ``ValueError`` when it is damaged."""

    async def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        """Decode greedily (for reports; never part of the protocol)."""


class Environment(Protocol):
    """A task: the same seed gives the same prompt and the same reward on every machine."""

    @property
    def name(self) -> str:
        """The name that manifests use."""

    @property
    def vocabulary(self) -> Sequence[str]:
        """The characters of its tokenizer; index is token id, 0 is padding, 1 is the end token."""

    def prompt(self, seed: int) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits)."""

    def score(self, seed: int, completion: Sequence[int]) -> float:
        """Return the reward in [0, 1] of completion tokens for problem ``seed``."""
