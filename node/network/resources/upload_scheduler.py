"""How fast this node sends others what they ask for: blobs, and messages that they missed."""

import asyncio
import sys
from heapq import heappop, heappush
from itertools import product

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

STRANGERS_WEIGHT = 0.25
"""To one for who has standing: while these want all of the line, strangers together have a fifth of
it, without which a newcomer would never earn any. A guess."""


class UploadScheduler:
    """A token bucket with four queues: ``take`` returns when the bytes may be sent.

    Who has standing and who has none share the line by weight, whatever either asks for (fair
    queueing by finish times, Golestani 1994). Blobs and missed messages have queues of their own,
    so that a newcomer's messages do not wait for the weights of hundreds; what one leaves, the
    others have.

    ``bytes_per_second`` is what the line carries, with all headers; None: there is no cap.
    ``piece_bytes_max`` is how much to take at once, so that what else leaves gets in between.
    """

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = None if bytes_per_second is None else PAYLOAD_SHARE * bytes_per_second
        self._allowance_bytes = 0.0
        self._refilled_at = 0.0
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        """Finish time, number, bytes, and what to tell: the next one first."""
        self._number = 0
        self._is_sending = False
        self._virtual_time = 0.0
        self._finish = dict.fromkeys(product((True, False), repeat=2), 0.0)
        """Of the last piece of each queue, in virtual time: by standing, and whether messages."""
        self.piece_bytes_max = sys.maxsize
        if self._rate is not None:
            self.piece_bytes_max = max(PIECE_BYTES_MIN, round(self._rate * PIECE_SECONDS))

    async def take(self, count: int, *, trusted: bool, messages: bool = False) -> None:
        """Wait for room for ``count`` bytes, which may be more than a burst.

        ``trusted`` tells whether they go to somebody who has standing, ``messages`` whether they
        are of the run's log and not of a blob.
        """
        if self._rate is None:
            return
        queue = trusted, messages
        begin = max(self._virtual_time, self._finish[queue])
        self._finish[queue] = begin + count / (1.0 if trusted else STRANGERS_WEIGHT)
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
                continue  # who waited has been cancelled
            self._virtual_time = finish
            now = loop.time()  # a wall clock may be set
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
