"""How fast this node sends blobs to others, whichever way they go."""

import asyncio

BURST_SECONDS = 0.25
"""What an idle uplink may send at once, in seconds of its cap; a guess that keeps queues short."""


class UploadCap:
    """A token bucket: ``take`` returns when the bytes may be sent."""

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second
        self._allowance_bytes = 0.0
        self._refilled_at = 0.0

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
