"""How fast this node sends blobs to others, whichever way they go."""

import asyncio
import sys

PAYLOAD_SHARE = 0.9
"""Of what the line carries. A full packet of Ethernet has 1448 bytes for us of 1514; the rest is
room for what else leaves. A line that is offered all that it carries keeps a queue, and whatever
leaves waits at its end (``benchmarks/shardcast/latency.py``)."""

BURST_SECONDS = 0.05
"""What an idle uplink may send at once, in seconds of its cap: all else that leaves waits so long.
An event loop that is later than this loses what it could have sent; a guess between the two."""

PIECE_SECONDS = 0.004
"""How long one piece occupies the line; some 250 writes a second, whatever the line; a guess."""

PIECE_BYTES_MIN = 4096


class UploadCap:
    """A token bucket: ``take`` returns when the bytes may be sent.

    ``bytes_per_second`` is what the line carries, with all headers; None: there is no cap.
    ``piece_bytes_max`` is how much to take at once, so that what else leaves gets in between.
    """

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = None if bytes_per_second is None else PAYLOAD_SHARE * bytes_per_second
        self._allowance_bytes = 0.0
        self._refilled_at = 0.0
        self.piece_bytes_max = sys.maxsize
        if self._rate is not None:
            self.piece_bytes_max = max(PIECE_BYTES_MIN, round(self._rate * PIECE_SECONDS))

    async def take(self, count: int) -> None:
        """Wait for room for ``count`` bytes, which may be more than a burst."""
        if self._rate is None:
            return
        now = asyncio.get_running_loop().time()  # a wall clock may be set
        elapsed = now - self._refilled_at
        self._refilled_at = now
        burst = self._rate * BURST_SECONDS
        self._allowance_bytes = min(burst, self._allowance_bytes + elapsed * self._rate) - count
        if self._allowance_bytes < 0:
            await asyncio.sleep(-self._allowance_bytes / self._rate)
