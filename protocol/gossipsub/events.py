"""Input events and output effects of the router: two closed unions.

Named tuples are made in half the time of frozen dataclasses; there are several per message.
``send_each`` encodes an RPC once for all its receivers.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

from protocol.core.faults import Fault
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.rpc import Rpc, encode_rpc


class PeerConnected(NamedTuple):
    """A peer is writable; repeated for a new stream, on which the peer lacks our subscriptions."""

    peer: PeerId


class PeerLocated(NamedTuple):
    """Addresses of a peer's connections, without those that many peers may share."""

    peer: PeerId
    addresses: tuple[str, ...]


class PeerDisconnected(NamedTuple):
    """A peer has disconnected."""

    peer: PeerId


class RpcReceived(NamedTuple):
    """A frame from a peer."""

    peer: PeerId
    rpc: bytes


class Subscribe(NamedTuple):
    """Subscribe to a topic; ``may_wait`` delays others' messages until the heartbeat."""

    topic: str
    may_wait: bool = False


class Unsubscribe(NamedTuple):
    """Unsubscribe from a topic."""

    topic: str


class Publish(NamedTuple):
    """Publish a message of ours; needs no subscription."""

    topic: str
    data: bytes


class Validated(NamedTuple):
    """Result of a ``Validate``; a duplicate or late one has no effect."""

    message_id: bytes
    verdict: ValidationResult


class Heartbeat(NamedTuple):
    """One interval of ``Params.heartbeat_seconds`` has passed."""


class Flush(NamedTuple):
    """The time of a ``FlushLater`` has passed."""


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
    """Priority of an RPC: sent in this order, dropped in reverse."""

    CONTROL = 0
    """Subscriptions, GRAFT, PRUNE: the peer's view of us depends on them."""
    PUBLISH = 1
    """Our own messages: no other node can deliver them."""
    RELAY = 2
    """Messages of others, and requested ones."""
    IWANT = 3
    IHAVE = 4


class Send(NamedTuple):
    """Send one RPC (not framed yet) to a peer."""

    peer: PeerId
    rpc: bytes
    priority: Priority


class Validate(NamedTuple):
    """Validate a message in the application; it is forwarded only after ``Validated`` ACCEPT."""

    message_id: bytes
    sender: PeerId
    author: PeerId
    topic: str
    data: bytes


class Deliver(NamedTuple):
    """Deliver an accepted message to the application."""

    message_id: bytes
    author: PeerId
    topic: str
    data: bytes


class DiscardReason(StrEnum):
    """Reason why a message of an honest peer was dropped."""

    DUPLICATE = "duplicate"
    PENDING_FULL = "pending-full"


DUPLICATE = DiscardReason.DUPLICATE
"""The most frequent reason. Before Python 3.12 access to an Enum member costs as much as a call."""


class Discard(NamedTuple):
    """A message that is dropped without a fault."""

    peer: PeerId
    topic: str
    message_id: bytes
    reason: DiscardReason


class PeerFault(NamedTuple):
    """A peer broke the protocol, or forwarded a message that the application rejects."""

    peer: PeerId
    fault: Fault


class FlushLater(NamedTuple):
    """Respond with ``Flush`` after this time; at most one is pending."""

    seconds: float


Effect = Send | Validate | Deliver | Discard | PeerFault | FlushLater


def send_each(rpcs: Mapping[PeerId, Rpc], priority: Priority) -> list[Effect]:
    """Return the effects that send each peer its RPC."""
    encoded: dict[Rpc, bytes] = {}
    effects: list[Effect] = []
    for peer, rpc in rpcs.items():
        data = encoded.get(rpc)
        if data is None:
            data = encoded[rpc] = encode_rpc(rpc)
        effects.append(Send(peer, data, priority))
    return effects
