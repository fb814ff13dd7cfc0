"""What goes into the router and what comes out of it: two closed unions.

Named tuples, which are made in half the time of frozen dataclasses: there are several per message.

One RPC to each of many peers: mostly the same, which is encoded once.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

from protocol.core.faults import Fault
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.rpc import Rpc, encode_rpc


class PeerConnected(NamedTuple):
    """A peer can be written to; said again when it lost what we told it (a new stream)."""

    peer: PeerId


class PeerLocated(NamedTuple):
    """Where a peer's connections come from or go to, without addresses that many may share."""

    peer: PeerId
    addresses: tuple[str, ...]


class PeerDisconnected(NamedTuple):
    """A peer is gone."""

    peer: PeerId


class RpcReceived(NamedTuple):
    """A peer sent one frame."""

    peer: PeerId
    rpc: bytes


class Subscribe(NamedTuple):
    """Our application wants a topic; what others say on one that may wait goes with heartbeats."""

    topic: str
    may_wait: bool = False


class Unsubscribe(NamedTuple):
    """Our application leaves a topic."""

    topic: str


class Publish(NamedTuple):
    """Our application publishes; subscribing to the topic is not needed."""

    topic: str
    data: bytes


class Validated(NamedTuple):
    """The application's verdict on a ``Validate``; one that comes twice or late has no effect."""

    message_id: bytes
    verdict: ValidationResult


class Heartbeat(NamedTuple):
    """One interval of ``Params.heartbeat_seconds`` has passed."""


class Flush(NamedTuple):
    """The time that a ``FlushLater`` named has passed."""


Event = (
    PeerConnected
    | PeerLocated
    | PeerDisconnected
    | RpcReceived
    | Subscribe
    | Unsubscribe
    | Publish
    | Validated
    | Heartbeat
    | Flush
)


class Priority(IntEnum):
    """How much an RPC matters: sent in this order, dropped from the end."""

    CONTROL = 0
    """Subscriptions, GRAFT, PRUNE: the peer's picture of us depends on them."""
    PUBLISH = 1
    """Our own messages: nobody else can bring them."""
    RELAY = 2
    """Messages of others, and those that a peer asked for."""
    IWANT = 3
    IHAVE = 4


class Send(NamedTuple):
    """Send one RPC (no frame yet) to a peer."""

    peer: PeerId
    rpc: bytes
    priority: Priority


class Validate(NamedTuple):
    """Ask the application about a message; it is relayed only after ``Validated`` ACCEPT."""

    message_id: bytes
    sender: PeerId
    author: PeerId
    topic: str
    data: bytes


class Deliver(NamedTuple):
    """Hand an accepted message to the application."""

    message_id: bytes
    author: PeerId
    topic: str
    data: bytes


class DiscardReason(StrEnum):
    """Why a message of an honest peer went no further."""

    DUPLICATE = "duplicate"
    PENDING_FULL = "pending-full"


DUPLICATE = DiscardReason.DUPLICATE
"""Most messages are; before Python 3.12 a member of an Enum costs as much to name as a call."""


class Discard(NamedTuple):
    """A message that is not ours to handle again."""

    peer: PeerId
    topic: str
    message_id: bytes
    reason: DiscardReason


class PeerFault(NamedTuple):
    """A peer broke the protocol, or forwarded what the application rejects."""

    peer: PeerId
    fault: Fault


class FlushLater(NamedTuple):
    """Answer with ``Flush`` after so many seconds; there is one under way at most."""

    seconds: float


Effect = Send | Validate | Deliver | Discard | PeerFault | FlushLater


def send_each(rpcs: Mapping[PeerId, Rpc], priority: Priority) -> list[Effect]:
    """Return what sends to each peer its RPC."""
    encoded: dict[Rpc, bytes] = {}
    effects: list[Effect] = []
    for peer, rpc in rpcs.items():
        data = encoded.get(rpc)
        if data is None:
            data = encoded[rpc] = encode_rpc(rpc)
        effects.append(Send(peer, data, priority))
    return effects
