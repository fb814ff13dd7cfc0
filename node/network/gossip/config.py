"""Deadlines and queue sizes of the gossip driver, and the heartbeat of a run."""

from dataclasses import dataclass

from node.network.resources.rate_limiter import Rate, Rates
from node.network.streams.protocols import GOSSIP
from protocol.gossipsub.params import Params

READ_BYTES_MIN = 8 << 10
"""Read from any peer before its rate is checked: 20 messages, or 3 ms of the slowest."""

READ_BURST_BYTES = 128 << 10
"""Burst per peer: four times the busiest second of an honest one (30 KB, ``churn-100``)."""

READ_RATES = Rates(
    trusted=Rate(1 << 20, READ_BURST_BYTES),
    untrusted=Rate(128 << 10, READ_BURST_BYTES),
    shared=Rate(512 << 10, 512 << 10),
    burst_min=READ_BYTES_MIN,
)
"""Bytes read. Untrusted peers outside our meshes use 1/20 of a core in total, those inside another
1/20: these forward others' messages at our request, and their own queue in the same stream."""

READ_BYTE_SECONDS = 1e-7
"""CPU seconds charged as one byte. A signed message takes twice as long per byte, the slowest byte
(half an unknown RPC field) four times (``benchmarks/handling.py``)."""

WAKE_BYTES = 256
"""Charged per read: the cost of waking its task, about 25 us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipLimits:
    """Deadlines in seconds and queue sizes; all are guesses unless a source is named."""

    call_seconds: float = 10.0
    """One transport call."""
    stall_seconds: float = GOSSIP.stall_seconds
    """A write, or the rest of a partial frame; slower peers are disconnected."""
    validate_seconds: float = 10.0
    """An application validator; after that the message is ignored."""
    retry_seconds: float = 1.0
    """Initial backoff for the outbound stream; doubles up to ``retry_seconds_max``."""
    retry_seconds_max: float = 60.0
    publish_wait_seconds: float = 5.0
    """Maximum wait of ``publish`` while most send queues are congested."""
    outbox_frames_max: int = 4096
    outbox_bytes_max: int = 4 << 20
    """Per peer; the queues share message bodies."""


HEARTBEAT_EPOCHS = 0.2
RELAY_HEARTBEATS = 0.05


def params_for_epoch(epoch_seconds: float) -> Params:
    """Return gossip parameters with a heartbeat of 1/5 epoch, at least 1 s and at most 4 s.

    1 s is the specification's heartbeat. A heartbeat bounds the recovery time of a lost message,
    and every decision takes at least an epoch. Heartbeats dominate the cost of an idle node.
    Forwarding waits up to 1/20 of a heartbeat.
    """
    heartbeat_seconds = min(max(HEARTBEAT_EPOCHS * epoch_seconds, 1.0), 4.0)
    return Params(
        heartbeat_seconds=heartbeat_seconds, relay_wait_seconds=RELAY_HEARTBEATS * heartbeat_seconds
    )
