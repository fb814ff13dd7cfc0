"""How full the bounded queues and tables of a node are, beside their bounds."""

from collections.abc import Mapping

from node.api.v1.answers import Usage
from node.gossip.links import GossipLimits
from protocol.gossip.params import Params
from protocol.ledger.ledger import COMMITS_IN_FLIGHT_MAX
from protocol.replica import WAITING_MAX
from protocol.types import MEMBERS_MAX

_PARAMS, _LIMITS = Params(), GossipLimits()

_KNOWN: Mapping[str, tuple[str, float | None]] = {
    "outbox_frames": ("frames for the slowest peer", _LIMITS.outbox_frames_max),
    "outbox_bytes": ("bytes for the slowest peer", _LIMITS.outbox_bytes_max),
    "pending": ("messages being checked", _PARAMS.pending_max),
    "cache_bytes": ("gossip cache", _PARAMS.cache_bytes_max),
    "seen": ("messages seen", _PARAMS.seen_max),
    "promises": ("promised messages", None),
    "backoffs": ("mesh back-offs", _PARAMS.backoffs_max),
    "in_flight": ("commits of one worker without an outcome", COMMITS_IN_FLIGHT_MAX),
    "waiting": ("messages that wait for another", WAITING_MAX),
    "versions_waiting": ("versions that wait", None),
    "roster": ("members on the roster", MEMBERS_MAX),
}


def queues(sizes: Mapping[str, int]) -> tuple[Usage, ...]:
    """Return the sizes that ``Snapshot`` has in words, the fullest of a kind."""
    return tuple(
        Usage(words, sizes[name], most, "bytes" if name.endswith("bytes") else "count")
        for name, (words, most) in _KNOWN.items()
        if name in sizes
    )
