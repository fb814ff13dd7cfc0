"""What goes into the router and what comes out of it: two closed unions."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from protocol.types import Fault, PeerId, Relay


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """A peer can be written to; said again when it lost what we told it (a new stream)."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """A peer is gone."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class RpcReceived:
    """A peer sent one frame."""

    peer: PeerId
    rpc: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Our application wants a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Our application leaves a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Our application publishes; subscribing to the topic is not needed."""

    topic: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Validated:
    """The application's verdict on a ``Validate``; one that comes twice or late has no effect."""

    message_id: bytes
    verdict: Relay


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One interval of ``Params.heartbeat_seconds`` has passed."""


Event = (
    PeerConnected
    | PeerDisconnected
    | RpcReceived
    | Subscribe
    | Unsubscribe
    | Publish
    | Validated
    | Heartbeat
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


@dataclass(frozen=True, slots=True)
class Send:
    """Send one RPC (no frame yet) to a peer."""

    peer: PeerId
    rpc: bytes
    priority: Priority


@dataclass(frozen=True, slots=True)
class Validate:
    """Ask the application about a message; it is relayed only after ``Validated`` ACCEPT."""

    message_id: bytes
    sender: PeerId
    author: PeerId
    topic: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand an accepted message to the application."""

    message_id: bytes
    author: PeerId
    topic: str
    data: bytes


class DiscardReason(StrEnum):
    """Why a message of an honest peer went no further."""

    DUPLICATE = "duplicate"
    PENDING_FULL = "pending-full"


@dataclass(frozen=True, slots=True)
class Discard:
    """A message that is not ours to handle again; the score may reward a near-first duplicate."""

    peer: PeerId
    topic: str
    message_id: bytes
    reason: DiscardReason


@dataclass(frozen=True, slots=True)
class Blame:
    """A peer broke the protocol, or forwarded what the application rejects."""

    peer: PeerId
    fault: Fault


Effect = Send | Validate | Deliver | Discard | Blame
