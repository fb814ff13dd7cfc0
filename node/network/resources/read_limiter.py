"""How fast a node reads what its peers gossip: each may take so much of its time.

What takes long to read is no fault, so who sends too much of it is not kept away but waits: its
bytes stay in its stream, whose window fills, and nothing but its own is late. Keys are free, so
those without standing share one rate, in equal parts among those that send a lot, and when hundreds
send a little, among all that send. Those of them in our meshes share another one: we ask them to
pass on what others say, and what they say themselves comes in the same stream, behind it.

A machine without I/O: the clock is an argument, and the caller waits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId

READ_BYTES_MIN = 8 << 10
"""Read of any peer between two looks at its account: twenty messages, or 3 ms of the slowest."""

WAKE_BYTES = 256
"""Charged for each read, however short: what it takes to wake its task, some 25 us."""

BURST_BYTES = 128 << 10
"""Read of a peer before its rate holds: four times what an honest one sent in its busiest second
(30 KB, ``churn-100``)."""

RECOUNT_SECONDS = 1.0
LOUD_SECONDS = 10.0
"""For so long a stranger that sent a lot counts among those that share; a guess, above what their
waits take while there are a few hundred of them."""

ACCOUNTS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRates:
    """Bytes per second.

    Strangers outside of our meshes take a twentieth of a core together, those inside another.
    """

    trusted: int = 1 << 20
    """Of a peer that has standing: a thousand messages."""
    stranger: int = 128 << 10
    """Of a peer that has none, while there is enough for all of them."""
    strangers: int = 512 << 10
    """Of all that have none together, in our meshes or not in them."""
    byte_seconds: float = 1e-7
    """Of a core, for what is charged as one byte. A message with its signatures takes twice as
    long, the slowest byte, half an unknown field of an RPC, four times
    (``benchmarks/handling.py``)."""


class _Account:
    """What was read of somebody and is not earned yet at its rate."""

    __slots__ = ("loud_until", "owed_bytes", "rate", "settled_at", "trusted")

    def __init__(self, rate: float) -> None:
        self.loud_until = 0.0
        self.owed_bytes = 0.0
        self.trusted = False
        self.rate = rate
        self.settled_at = 0.0

    def settle(self, came_bytes: int, now: float) -> None:
        earned = (now - self.settled_at) * self.rate
        self.owed_bytes = max(0.0, self.owed_bytes + came_bytes - earned)
        self.settled_at = now

    def wait_seconds(self, burst_bytes: int) -> float:
        """Return how long it takes to earn all that is owed but a burst."""
        return max(0.0, self.owed_bytes - burst_bytes) / self.rate


class _Strangers:
    """What those without standing of one kind are read at together."""

    def __init__(self, rates: ReadRates) -> None:
        self._rates = rates
        self._together = _Account(rates.strangers)
        self.loud = 0
        """How many share the rate."""

    def settle(self, came_bytes: int, now: float) -> None:
        self._together.settle(came_bytes, now)

    @property
    def strained(self) -> bool:
        """Whether they are over their rate: then what any of them sends is looked at."""
        return self._together.owed_bytes > self._rates.strangers

    @property
    def rate(self) -> float:
        """Of each that sends a lot."""
        return min(self._rates.stranger, self._rates.strangers / max(1, self.loud))


class ReadRateLimiter:
    """The accounts of all peers; ``trusted`` tells who has standing, ``meshed`` who is in a
    mesh.
    """

    def __init__(
        self,
        rates: ReadRates,
        trusted: Callable[[PeerId], bool],
        meshed: Callable[[PeerId], bool] = lambda _peer: False,
        *,
        name: str = "reading",
    ) -> None:
        self._rates = rates
        self._proven = trusted
        self._meshed = meshed
        self._came = BoundedDict[PeerId, int](ACCOUNTS_MAX, name)
        """Bytes that are in no account yet: most peers send little, and need none."""
        self._accounts = BoundedDict[PeerId, _Account](ACCOUNTS_MAX, name)
        self.tables = (self._came, self._accounts)
        self._in_meshes, self._others = _Strangers(rates), _Strangers(rates)
        self._strained = False
        """Whether strangers of either kind are over their rate."""
        self._recounted_at = 0.0

    def __len__(self) -> int:
        """Return of how many peers something is kept, at most."""
        return max(len(self._came), len(self._accounts))

    def came(self, peer: PeerId, count: int) -> bool:
        """Note that so many bytes of a peer came; False: they are read at once."""
        came_bytes = self._add(peer, count + WAKE_BYTES)
        return came_bytes > READ_BYTES_MIN or self._strained

    def took(self, peer: PeerId, core_seconds: float, count: int) -> None:
        """Charge what took longer to handle than the ``count`` bytes that are charged already."""
        extra_bytes = core_seconds / self._rates.byte_seconds - count
        if extra_bytes > 0:
            self._add(peer, round(extra_bytes))

    def wait_seconds(self, peer: PeerId, now: float) -> float:
        """Return how long what came of a peer waits until it is read."""
        self._recount(now)
        strangers = self._kind(peer)
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = _Account(strangers.rate)
        account.trusted = self._proven(peer)
        if account.trusted:
            account.rate = self._rates.trusted
        else:
            strangers.loud += account.loud_until <= now
            account.loud_until = now + LOUD_SECONDS
            account.rate = strangers.rate
        self._settle(peer, account, now)
        if account.trusted:
            return account.wait_seconds(BURST_BYTES)
        # Over their rate they have none, or every new key would have a burst of its own.
        return account.wait_seconds(READ_BYTES_MIN if strangers.strained else BURST_BYTES)

    def _kind(self, peer: PeerId) -> _Strangers:
        """Return with whom a peer shares if it has no standing."""
        return self._in_meshes if self._meshed(peer) else self._others

    def _add(self, peer: PeerId, count: int) -> int:
        """Return all that came of a peer and is in no account yet."""
        self._came[peer] = came_bytes = self._came.get(peer, 0) + count
        return came_bytes

    def _settle(self, peer: PeerId, account: _Account, now: float) -> None:
        came_bytes = self._came.pop(peer, 0)
        account.settle(came_bytes, now)
        if not account.trusted:
            self._settle_strangers(self._kind(peer), came_bytes, now)

    def _settle_strangers(self, strangers: _Strangers, came_bytes: int, now: float) -> None:
        strangers.settle(came_bytes, now)
        self._strained = self._in_meshes.strained or self._others.strained

    def _recount(self, now: float) -> None:
        """Close the accounts that owe nothing, and count who shares what is for strangers."""
        if now < self._recounted_at + RECOUNT_SECONDS:
            return
        self._recounted_at = now
        for peer, account in self._accounts.items():
            self._settle(peer, account, now)
        came = {self._in_meshes: 0, self._others: 0}
        for peer, came_bytes in self._came.items():
            if not self._proven(peer):
                came[self._kind(peer)] += came_bytes
        for kind, came_bytes in came.items():
            self._settle_strangers(kind, came_bytes, now)
            kind.loud = 0
        self._came.clear()
        self._accounts.retain(lambda _peer, each: each.owed_bytes > 0 or each.loud_until > now)
        for peer, each in self._accounts.items():
            self._kind(peer).loud += each.loud_until > now
