"""Which tables and queues of a node strangers can fill, and the most that each may hold."""

from collections.abc import Mapping

from node.blobs.ways import PEERS_MAX as HTTP_PEERS_MAX
from node.circuits.relay import RESERVATIONS_MAX
from node.gossip.limits import GossipLimits
from node.gossip.reading import ACCOUNTS_MAX
from node.membership.bans import PEERS_MAX
from node.membership.buckets import OWNERS_PER_KEY_MAX
from node.membership.dials import HOSTS_MAX
from node.membership.outcomes import FAILED_MAX
from node.membership.witness import FOUND_MAX
from node.streams.openings import OPENERS_MAX
from node.streams.protocols import BLOBS, DIAL_BACK, HOP, MANIFEST, MESSAGE, SYNC
from node.streams.rates import BUCKETS_MAX
from node.streams.turns import WASTED_MAX
from node.weights_http.doorkeeper import ADDRESSES_MAX, ConnectionLimits
from protocol.clock_offsets import PEERS_MAX as CLOCKS_MAX
from protocol.gossip.newcomers import LANE_WAITING_BYTES_MAX
from protocol.gossip.params import Params
from protocol.gossip.score_params import ScoreParams
from protocol.late_evidence import OLD_COMMITS_MAX
from protocol.ledger.branches import VERSIONS_WAITING_MAX
from protocol.ledger.ledger import COMMITS_IN_FLIGHT_MAX
from protocol.ledger.workers import UNCERTIFIED_MAX
from protocol.membership import UNCHECKED_MAX
from protocol.replica import WAITING_MAX
from protocol.standing import STRANGER_COMMITS_MAX
from protocol.types import MEMBERS_MAX

_GOSSIP, _SCORES, _LINKS = Params(), ScoreParams(), GossipLimits()

LIMITS: Mapping[str, int] = {
    "backoffs": _GOSSIP.backoffs_max,
    "bans": PEERS_MAX,
    "cache_bytes": _GOSSIP.cache_bytes_max,
    "clocks": CLOCKS_MAX,
    "connected": _GOSSIP.peers_max,
    "directory_callers": ACCOUNTS_MAX,
    "directory_records": OWNERS_PER_KEY_MAX,
    "failed_addresses": FAILED_MAX,
    "faults": PEERS_MAX,
    "findings": FOUND_MAX,
    "http_addresses": ADDRESSES_MAX,
    "http_connections": ConnectionLimits().total,
    "http_peers": HTTP_PEERS_MAX,
    "in_flight": COMMITS_IN_FLIGHT_MAX,
    "judged": _SCORES.judged_max,
    "newcomers_bytes": LANE_WAITING_BYTES_MAX,
    "old_commits": OLD_COMMITS_MAX,
    "openers": OPENERS_MAX,
    "outbox_bytes": _LINKS.outbox_bytes_max,
    "outbox_frames": _LINKS.outbox_frames_max,
    "pending": _GOSSIP.pending_max,
    "promises": _SCORES.promises_max,
    "reading": ACCOUNTS_MAX,
    "reservations": RESERVATIONS_MAX,
    "retained_scores": _SCORES.retained_max,
    "roster": MEMBERS_MAX,
    "seen": _GOSSIP.seen_max,
    "silent_hosts": HOSTS_MAX,
    "stranger_commits": STRANGER_COMMITS_MAX,
    "stream_rates": BUCKETS_MAX,
    "streams_blobs": BLOBS.streams_total,
    "streams_dial_back": DIAL_BACK.streams_total,
    "streams_hop": HOP.streams_total,
    "streams_manifest": MANIFEST.streams_total,
    "streams_message": MESSAGE.streams_total,
    "streams_sync": SYNC.streams_total,
    "turns_wasted": WASTED_MAX,
    "uncertified_workers": UNCERTIFIED_MAX,
    "unchecked": UNCHECKED_MAX,
    "versions_waiting": VERSIONS_WAITING_MAX,
    "waiting": WAITING_MAX,
}
"""By the name of a table in a status, in ``/metrics`` and in samples of simulations. Of what there
is one for each peer or key (``in_flight``, ``newcomers_bytes``, ``outbox_*``,
``directory_records``) the fullest counts.

``streams_*`` are places, and ``findings``, ``stream_rates``, ``turns_wasted``, ``http_addresses``,
``openers`` and ``http_peers`` forget the oldest: full, they work as when they are not."""
