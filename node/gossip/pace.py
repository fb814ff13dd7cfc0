"""How fast gossip beats: at the pace of its run."""

from protocol.gossip.params import Params

HEARTBEAT_EPOCHS = 0.2
RELAY_HEARTBEATS = 0.05


def paced(epoch_seconds: float) -> Params:
    """Return gossip's times: the specification's second, up to four when epochs are long.

    A heartbeat bounds how long a lost message is missed, and nothing is decided faster than an
    epoch; most of what an idle node does is its heartbeat. A relay waits a twentieth of it.
    """
    heartbeat_seconds = min(max(HEARTBEAT_EPOCHS * epoch_seconds, 1.0), 4.0)
    return Params(
        heartbeat_seconds=heartbeat_seconds, relay_wait_seconds=RELAY_HEARTBEATS * heartbeat_seconds
    )
