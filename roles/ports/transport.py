"""Peers and bytes between them: connections, streams, and the directory of addresses.

Every call that waits for another node has a deadline at the caller (``asyncio.timeout``).
"""

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.core.types import Digest, PeerId


class TransportError(Exception):
    """A peer could not be reached, or a stream broke; the caller tries another peer or later."""


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

    circuits: bool = False
    """Whether it connects and can be connected to through a relay."""

    async def addresses(self) -> list[str]:
        """Return our dialable multiaddresses, each ending in ``/p2p/<peer id>``."""

    async def connect(self, address: str) -> PeerId:
        """Dial a multiaddress with ``/p2p/<peer id>``; raises ``TransportError``."""

    async def disconnect(self, peer: PeerId) -> None:
        """Drop every connection to ``peer``; idempotent."""

    async def keep(self, peers: Collection[PeerId]) -> None:
        """Have connections to ``peers``, and no longer those of the last call, end last.

        Where there are too many connections, others end before them. Raises ``TransportError``.
        """

    async def peers(self) -> list[PeerId]:
        """Return the peers that are connected now."""

    async def remote_addresses(self, peer: PeerId) -> list[str]:
        """Return where the connections to ``peer`` come from or go to, without ``/p2p``."""

    async def probe(self, address: str) -> None:
        """Find out whether a multiaddress with ``/p2p/<peer id>`` is answered by that key.

        By a connection of its own, which ends at once: one that is there already proves nothing.
        Raises ``TransportError`` when it is not.
        """


class RangeBody(Protocol):
    """The bytes of a range, on their way from one peer."""

    async def read_exactly(self, count: int) -> bytes | bytearray:
        """Return the next ``count`` bytes, which may be overwritten by the next call.

        Raises ``TransportError`` when they do not come.
        """

    async def close(self) -> None:
        """Read no further; idempotent, never raises."""


class HttpRanges(Protocol):
    """Ranges of blobs from the HTTP face of a connected peer; nothing here authenticates it."""

    def reaches(self, peer: PeerId) -> bool:
        """Return whether the host that a peer is connected from is known by now."""

    async def open(
        self, peer: PeerId, port: int, digest: Digest, offset: int, length: int, *, wait: bool
    ) -> RangeBody:
        """Ask for exactly this range; raises ``TransportError`` when the answer is not it."""


class Directory(Protocol):
    """A shared, weakly consistent map with sub-keys and expiry: a hint for addresses only."""

    async def publish(self, key: str, value: bytes, expires_at: float) -> bool:
        """Store our ``value`` under ``key`` and our own peer id; False if nobody took it."""

    async def lookup(self, key: str) -> Mapping[PeerId, bytes]:
        """Return what each peer stored under ``key`` and has not expired; possibly stale."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What a node knows of whoever opens streams to it."""

    trusted: Callable[[PeerId], bool] = lambda _peer: False
    """Whether a peer has standing."""
    block: Callable[[PeerId], Hashable] = lambda peer: peer
    """What it shares with others who are probably the same: its address block, if known."""
    member: Callable[[PeerId], bool] = lambda _peer: False
    """Whether it has been admitted: its record is here."""
