"""Limits of blob uploads, in particular to untrusted peers."""

from dataclasses import dataclass

from node.network.streams.protocols import BLOBS

UNTRUSTED_BYTES_PER_SECOND = 512 * 1024
"""Bandwidth for each stream of an untrusted peer: a 1 MB chunk in 2 s, long before the requester
switches to another source. A guess."""

UNTRUSTED_MIN = 8
"""Streams of one download."""

STREAMS_PER_TURN = 4
"""Average streams per active untrusted peer: some have just arrived, some are about to leave.
Median time for 800 peers to fetch 8 MB each from five 500 Mbit/s uplinks: 26 s at 4 or 3, 30 s at
8, 32 s without round robin."""

TURNS_MIN = 4
"""Untrusted peers served concurrently even on a slow uplink, since one may be slow; a guess."""

WORTH_BYTES = 64 * 1024
"""Sending so many bytes costs more than opening the stream, which is then not counted
(``node.network.connections.gater``). A guess."""


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """Upload limits; the numbers are guesses, the upload limit is the operator's.

    ``streams_per_peer`` is twice the number of streams of one download. ``stall_seconds`` is the
    deadline for one piece to be read from disk, received, or written.
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
    def untrusted(self) -> int:
        """Maximum concurrent streams of untrusted peers.

        Bounded by the upload bandwidth: with 256 streams on a slow uplink all chunks time out.
        """
        if self.upload_bytes_per_second is None:
            return self.streams_total
        carried = self.upload_bytes_per_second // UNTRUSTED_BYTES_PER_SECOND
        return min(self.streams_total, max(UNTRUSTED_MIN, carried))

    @property
    def turns(self) -> int:
        """Maximum untrusted peers served concurrently."""
        return max(TURNS_MIN, self.untrusted // STREAMS_PER_TURN)
