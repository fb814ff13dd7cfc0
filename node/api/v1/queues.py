"""Sizes and limits of a node's bounded queues and tables."""

from collections.abc import Mapping

from node.api.v1.answers import Usage

_WORDS: Mapping[str, str] = {
    "outbox_frames": "send queue of the slowest peer, frames",
    "outbox_bytes": "send queue of the slowest peer",
    "pending": "messages being validated",
    "cache_bytes": "gossip cache",
    "seen": "seen message ids",
    "promises": "requested messages (IWANT)",
    "backoffs": "mesh backoffs",
    "in_flight": "undecided commits of one worker",
    "untrusted_commits": "undecided commits of untrusted workers",
    "waiting": "pending messages (missing dependency)",
    "versions_waiting": "pending versions",
    "roster": "roster members",
    "streams_sync": "anti-entropy streams",
    "streams_blobs": "blob upload streams",
}


def queues(sizes: Mapping[str, int], limits: Mapping[str, int]) -> tuple[Usage, ...]:
    """Return the sizes and limits of tables with readable names."""
    return tuple(
        Usage(words, sizes[name], limits[name], "bytes" if name.endswith("bytes") else "count")
        for name, words in _WORDS.items()
        if name in sizes
    )
