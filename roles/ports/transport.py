"""Transport between peers: connections, streams, and the address directory.

Callers set the deadline of every call that waits for another node (``asyncio.timeout``).
"""

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.core.types import Digest, PeerId


class TransportError(Exception):
    """A peer is unreachable or a stream broke; the caller tries another peer or retries later."""


class Stream(Protocol):
    """Bidirectional byte stream to one peer."""

    @property
    def peer(self) -> PeerId:
        """Authenticated remote peer."""

    async def read(self, bytes_max: int) -> bytes:
        """Return 1 to ``bytes_max`` bytes, or ``b""`` at the end of the stream."""

    async def read_exactly(self, count: int) -> bytes:
        """Return ``count`` bytes; raises ``TransportError`` when the stream ends early."""

    async def write(self, data: bytes) -> None:
        """Send ``data``, waiting while the peer's window is full; raises ``TransportError``."""

    def offer(self, data: bytes) -> bool:
        """Send ``data`` if no other write waits; on False nothing was sent: use ``write``."""

    async def close(self) -> None:
        """Close both directions; idempotent, never raises."""


StreamHandler = Callable[[Stream], Awaitable[None]]


class Streams(Protocol):
    """Opens streams to peers and serves inbound ones."""

    @property
    def peer_id(self) -> PeerId:
        """Peer id of this node."""

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Open a stream for ``protocol``; raises ``TransportError``, also if unsupported."""

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve ``protocol``: run ``handler`` for each inbound stream, then close it."""


class Transport(Streams, Protocol):
    """Authenticated connections and streams between peers."""

    circuits: bool = False
    """True when it dials and accepts connections through relays."""

    async def addresses(self) -> list[str]:
        """Return this node's dialable multiaddresses, each ending in ``/p2p/<peer id>``."""

    async def connect(self, address: str) -> PeerId:
        """Dial a multiaddress with ``/p2p/<peer id>``; raises ``TransportError``."""

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to ``peer``; idempotent."""

    async def keep(self, peers: Collection[PeerId]) -> None:
        """Protect connections to ``peers`` from pruning; replaces the set of the last call.

        Unprotected connections are pruned first. Raises ``TransportError``.
        """

    async def peers(self) -> list[PeerId]:
        """Return the connected peers."""

    async def remote_addresses(self, peer: PeerId) -> list[str]:
        """Return the remote addresses of the connections to ``peer``, without ``/p2p``."""

    async def probe(self, address: str) -> None:
        """Verify that the key of a multiaddress with ``/p2p/<peer id>`` answers there.

        The probe dials a new connection and closes it at once: an existing one proves nothing.
        Raises ``TransportError`` on a failure.
        """


class RangeBody(Protocol):
    """Bytes of a range in transfer from one peer."""

    async def read_exactly(self, count: int) -> bytes | bytearray:
        """Return the next ``count`` bytes; the next call may overwrite them.

        Raises ``TransportError`` when the transfer ends early.
        """

    async def close(self) -> None:
        """Stop reading; idempotent, never raises."""


class HttpRanges(Protocol):
    """Blob ranges from the HTTP service of a connected peer, which is not authenticated."""

    def reaches(self, peer: PeerId) -> bool:
        """Return whether the host of a connected peer is known."""

    async def open(
        self, peer: PeerId, port: int, digest: Digest, offset: int, length: int, *, wait: bool
    ) -> RangeBody:
        """Request exactly this range; raises ``TransportError`` for any other response."""


class Directory(Protocol):
    """Shared, weakly consistent map with sub-keys and expiry, for address hints only."""

    async def publish(self, key: str, value: bytes, expires_at: float) -> bool:
        """Store ``value`` under ``key`` and this node's peer id; False if no node stored it."""

    async def lookup(self, key: str) -> Mapping[PeerId, bytes]:
        """Return the unexpired value of each peer under ``key``; it may be stale."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Trust in the peers that open streams to this node."""

    trusted: Callable[[PeerId], bool] = lambda _peer: False
    """True for a peer with reputation."""
    block: Callable[[PeerId], Hashable] = lambda peer: peer
    """Address block of a peer, if known: peers of one block probably have one operator."""
    member: Callable[[PeerId], bool] = lambda _peer: False
    """True for an admitted peer, whose record is stored here."""

    @classmethod
    def of(cls, current: Callable[[], "Trust"]) -> "Trust":
        """Return the trust that ``current`` returns at each call, for a node that is made later."""
        return cls(
            lambda peer: current().trusted(peer),
            lambda peer: current().block(peer),
            lambda peer: current().member(peer),
        )
