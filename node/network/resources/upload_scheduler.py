"""Upload scheduler: bandwidth limit and weighted fair queueing of blobs and missed messages."""

import asyncio
import sys
from heapq import heappop, heappush
from itertools import product

PAYLOAD_SHARE = 0.9
"""Share of the bandwidth for payload. A full Ethernet packet carries 1448 payload bytes of 1514;
the rest is for other traffic. At full load every packet waits in the uplink's queue
(``benchmarks/shardcast/latency.py``)."""

BURST_SECONDS = 0.05
"""Burst of an idle uplink, in seconds of its limit: the maximum delay of other traffic. An event
loop that wakes later loses bandwidth. A guess between the two."""

PIECE_SECONDS = 0.004
"""Transmission time of one piece: about 250 writes per second on any uplink; a guess."""

PIECE_BYTES_MIN = 4096

UNTRUSTED_WEIGHT = 0.25
"""Weight of untrusted peers, relative to 1 for trusted ones: they have 1/5 of a fully used uplink.
Without it they could never gain reputation. A guess."""


class UploadScheduler:
    """Token bucket with four queues: ``take`` returns when the bytes may be sent.

    Trusted and untrusted peers share the bandwidth by weight, independent of their load (fair
    queueing by finish times, Golestani 1994). Blobs and missed messages have separate queues, so
    that messages do not wait behind weights. Unused shares go to the other queues.

    ``bytes_per_second`` is the bandwidth including all headers; None: no limit. ``piece_bytes_max``
    is the size of one ``take``, so that other traffic interleaves.
    """

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = None if bytes_per_second is None else PAYLOAD_SHARE * bytes_per_second
        self._allowance_bytes = 0.0
        self._refilled_at = 0.0
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        """Heap of finish time, sequence number, bytes and future."""
        self._number = 0
        self._is_sending = False
        self._virtual_time = 0.0
        self._finish = dict.fromkeys(product((True, False), repeat=2), 0.0)
        """Finish time of the last piece per queue, in virtual time, keyed (trusted, is_message)."""
        self.piece_bytes_max = sys.maxsize
        if self._rate is not None:
            self.piece_bytes_max = max(PIECE_BYTES_MIN, round(self._rate * PIECE_SECONDS))

    async def take(self, count: int, *, trusted: bool, messages: bool = False) -> None:
        """Wait until ``count`` bytes may be sent; ``count`` may exceed a burst.

        ``trusted``: the receiver is trusted. ``messages``: the bytes are log messages, not a blob.
        """
        if self._rate is None:
            return
        queue = trusted, messages
        begin = max(self._virtual_time, self._finish[queue])
        self._finish[queue] = begin + count / (1.0 if trusted else UNTRUSTED_WEIGHT)
        self._number += 1
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (self._finish[queue], self._number, count, turn))
        if not self._is_sending:
            self._send_next(self._rate)
        await turn

    def _send_next(self, rate: float) -> None:
        loop = asyncio.get_running_loop()
        self._is_sending = False
        while self._waiting and not self._is_sending:
            finish, _, count, turn = heappop(self._waiting)
            if turn.done():
                continue  # the waiter was cancelled
            self._virtual_time = finish
            now = loop.time()  # monotonic
            earned_bytes = (now - self._refilled_at) * rate
            self._refilled_at = now
            burst_bytes = rate * BURST_SECONDS
            self._allowance_bytes = min(burst_bytes, self._allowance_bytes + earned_bytes) - count
            if self._allowance_bytes < 0:
                self._is_sending = True
                loop.call_later(-self._allowance_bytes / rate, self._sent, turn, rate)
            else:
                turn.set_result(None)

    def _sent(self, turn: asyncio.Future[None], rate: float) -> None:
        if not turn.done():
            turn.set_result(None)
        self._send_next(rate)
