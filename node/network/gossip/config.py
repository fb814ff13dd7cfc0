"""What the driver of gossip waits for, and how much it queues.

How fast gossip beats: at the pace of its run.
"""

from dataclasses import dataclass, field

from node.network.resources.read_limiter import ReadRates
from node.network.streams.protocols import GOSSIP
from protocol.gossipsub.params import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipLimits:
    """Deadlines in seconds and sizes of the driver; all are guesses unless a source is named."""

    call_seconds: float = 10.0
    """One call of the transport."""
    stall_seconds: float = GOSSIP.stall_seconds
    """A write, or the rest of a begun frame; a peer that takes longer is disconnected."""
    validate_seconds: float = 10.0
    """An application validator; after that the message is ignored."""
    retry_seconds: float = 1.0
    """Before the outbound stream is opened again; doubles up to ``retry_seconds_max``."""
    retry_seconds_max: float = 60.0
    publish_wait_seconds: float = 5.0
    """How long ``publish`` waits at most while most peers' queues are crowded."""
    outbox_frames_max: int = 4096
    outbox_bytes_max: int = 4 << 20
    """Per peer; bodies are shared between the queues."""
    rates: ReadRates = field(default_factory=ReadRates)


HEARTBEAT_EPOCHS = 0.2
RELAY_HEARTBEATS = 0.05


def params_for_epoch(epoch_seconds: float) -> Params:
    """Return gossip's times: the specification's second, up to four when epochs are long.

    A heartbeat bounds how long a lost message is missed, and nothing is decided faster than an
    epoch; most of what an idle node does is its heartbeat. A relay waits a twentieth of it.
    """
    heartbeat_seconds = min(max(HEARTBEAT_EPOCHS * epoch_seconds, 1.0), 4.0)
    return Params(
        heartbeat_seconds=heartbeat_seconds, relay_wait_seconds=RELAY_HEARTBEATS * heartbeat_seconds
    )
