"""What a node gives to others of its blobs, and how much of it to strangers."""

from dataclasses import dataclass

from node.network.streams.protocols import BLOBS

STRANGER_BYTES_PER_SECOND = 512 * 1024
"""Of the line for each stream of a stranger: a chunk of a megabyte in two seconds, long before who
asked for it turns to somebody else. A guess."""

STRANGERS_MIN = 8
"""One download's streams."""

STREAMS_PER_TURN = 4
"""On average: some have just come, and some are about to leave. A crowd of 800 has 8 MB from five
lines of 500 Mbit/s after 26 s (median) with 4 or 3, 30 with 8, and 32 without turns."""

TURNS_MIN = 4
"""Strangers that are served at once, however thin the line: one of them may be slow. A guess."""

WORTH_BYTES = 64 * 1024
"""Sending so much takes longer than opening a stream for it, which is not counted then
(``node.network.resources.open_rate``). A guess."""


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """What a node gives to others; the numbers are guesses, the cap is the operator's.

    ``streams_per_peer`` is twice what one download keeps in flight. ``stall_seconds`` is how long
    one piece may take to be read, to arrive, or to be written.
    """

    word: str = BLOBS.word
    streams_per_peer: int = BLOBS.streams_per_peer
    streams_total: int = BLOBS.streams_total
    streams_per_second: float | None = BLOBS.streams_per_second
    streams_burst: int = BLOBS.streams_burst
    piece_bytes: int = 256 * 1024
    open_seconds: float = 10.0
    stall_seconds: float = BLOBS.stall_seconds
    upload_bytes_per_second: int | None = None

    @property
    def strangers(self) -> int:
        """How many streams of peers without standing are served at once.

        No more than the line brings to an end: of 256 on a thin one no chunk would come in time.
        """
        if self.upload_bytes_per_second is None:
            return self.streams_total
        carried = self.upload_bytes_per_second // STRANGER_BYTES_PER_SECOND
        return min(self.streams_total, max(STRANGERS_MIN, carried))

    @property
    def turns(self) -> int:
        """How many peers without standing are served at once."""
        return max(TURNS_MIN, self.strangers // STREAMS_PER_TURN)
