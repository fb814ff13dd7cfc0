"""What the driver of gossip waits for, and how much it queues."""

from dataclasses import dataclass, field

from node.gossip.reading import ReadRates
from node.streams.protocols import GOSSIP


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
