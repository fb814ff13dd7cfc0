"""Limits rule: every message, queue and table stays within its limit."""

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import ENVELOPE_BYTES_MAX, VERDICT_BYTES_MAX, Opened
from simulations.runtime.trace import Event

LIMITS = {
    "clocks": 256,
    "old_commits": 1024,
    "backoffs": 1 << 14,
    "bans": 4096,
    "cache_bytes": 64 << 20,
    "connected": 512,
    "counted_verdicts": 64 * 800,
    "objections": 1024,
    "overturns": 1024,
    "failed_addresses": 1024,
    "faults": 4096,
    "final_pages": 2048,
    "observations": 512,
    "http_peers": 4096,
    "in_flight": 216,  # 16 of a worker, and what one page lists
    "delivery_records": 8192,
    "evidence": 200,
    "untrusted_bytes": 512 << 10,
    "open_rate_peers": 4096,
    "outbox_bytes": 4 << 20,
    "outbox_frames": 4096,
    "page_orphans": 32,
    "page_proposals": 200 * 16,
    "page_votes": 200 * 64,
    "watched_pages": 1024,
    "pending": 1024,
    "promises": 4096,
    "read_accounts": 4096,
    "retained_scores": 4096,
    "roster": 20_000,
    "round_plans": 4,
    "round_results": 32,
    "seen": 1 << 17,
    "failed_hosts": 1024,
    "untrusted_commits": 4096,
    "step_reports": 128,
    "stream_rates": 4096,
    "streams_blobs": 256,
    "streams_dial_back": 4,
    "streams_ledger": 16,
    "streams_manifest": 16,
    "streams_message": 128,
    "streams_pages": 16,
    "streams_sync": 16,
    "unused_rounds": 4096,
    "uncertified_workers": 4096,
    "unverified_records": 1024,
    "versions_waiting": 8192,
    "waiting": 1024,
}
"""Sampled sizes and their limits, written a second time on purpose."""


class TableLimits:
    """Compares samples and stored messages with the limits of the design."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        watch.on("sample", self._on_sample)
        watch.on_message("*", self._on_message)

    def _on_sample(self, event: Event) -> None:
        for name, limit in LIMITS.items():
            value = event.facts.get(name)
            if isinstance(value, int | float) and value > limit:
                what = f"{name} is {value}, its limit {limit}"
                self._watch.report("within-limits", event.node, what)

    def _on_message(self, event: Event, _member: TracedNode, message: Opened) -> None:
        limit = VERDICT_BYTES_MAX if message.kind == "verdict" else ENVELOPE_BYTES_MAX
        if message.length > limit:
            what = f"a {message.kind} of {message.length} bytes, its limit {limit}"
            self._watch.report("within-limits", event.node, what)
