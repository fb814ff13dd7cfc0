"""How full the bounded queues and tables of a node are, beside their bounds."""

from collections.abc import Mapping

from node.api.v1.answers import Usage

_WORDS: Mapping[str, str] = {
    "outbox_frames": "frames for the slowest peer",
    "outbox_bytes": "bytes for the slowest peer",
    "pending": "messages being checked",
    "cache_bytes": "gossip cache",
    "seen": "messages seen",
    "promises": "promised messages",
    "backoffs": "mesh back-offs",
    "in_flight": "commits of one worker without an outcome",
    "stranger_commits": "commits of strangers without an outcome",
    "waiting": "messages that wait for another",
    "versions_waiting": "versions that wait",
    "roster": "members on the roster",
    "streams_sync": "streams of members that ask what they missed",
    "streams_blobs": "streams of blobs that are sent",
}


def queues(sizes: Mapping[str, int], limits: Mapping[str, int]) -> tuple[Usage, ...]:
    """Return the sizes and limits of tables, in words."""
    return tuple(
        Usage(words, sizes[name], limits[name], "bytes" if name.endswith("bytes") else "count")
        for name, words in _WORDS.items()
        if name in sizes
    )
