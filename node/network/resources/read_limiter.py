"""Read limiter: CPU time that a node spends on reading each peer's gossip.

Costly messages are no fault, so a peer over its rate is delayed, not banned. Its bytes stay in its
stream, whose flow control window fills; other peers are not delayed. Keys are free, so untrusted
peers share one rate: equally among the active ones, or among all senders when hundreds send little.
Untrusted mesh peers share a second rate: they forward others' messages at our request, and their
own messages queue in the same stream.

Without I/O: the clock is an argument, and the caller waits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from protocol.core.containers import BoundedDict
from protocol.core.types import PeerId

READ_BYTES_MIN = 8 << 10
"""Read from any peer before its account is checked: 20 messages, or 3 ms of the slowest."""

WAKE_BYTES = 256
"""Charged per read: the cost of waking its task, about 25 us."""

BURST_BYTES = 128 << 10
"""Burst per peer: four times the busiest second of an honest one (30 KB, ``churn-100``)."""

RECOUNT_SECONDS = 1.0
LOUD_SECONDS = 10.0
"""Duration of an untrusted peer's active state; a guess above the delays of hundreds of them."""

ACCOUNTS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRates:
    """Rates in bytes per second.

    Untrusted peers outside our meshes use 1/20 of a core in total, those inside another 1/20.
    """

    trusted: int = 1 << 20
    """Per trusted peer: a thousand messages."""
    untrusted_peer: int = 128 << 10
    """Per untrusted peer, while the shared rate suffices."""
    untrusted: int = 512 << 10
    """All untrusted peers, separately for mesh peers and others."""
    byte_seconds: float = 1e-7
    """CPU seconds charged as one byte. A signed message takes twice as long per byte, the slowest
    byte (half an unknown RPC field) four times (``benchmarks/handling.py``)."""


class _Account:
    """Leaky bucket: bytes read from a peer and not yet earned at its rate."""

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
        """Return the time until the debt is at most one burst."""
        return max(0.0, self.owed_bytes - burst_bytes) / self.rate


class _UntrustedAccounts:
    """Shared budget of untrusted peers, in our meshes or outside."""

    def __init__(self, rates: ReadRates) -> None:
        self._rates = rates
        self._together = _Account(rates.untrusted)
        self.loud = 0
        """Number of active peers that share the rate."""

    def settle(self, came_bytes: int, now: float) -> None:
        self._together.settle(came_bytes, now)

    @property
    def strained(self) -> bool:
        """True if the group is over budget; then every read is checked."""
        return self._together.owed_bytes > self._rates.untrusted

    @property
    def rate(self) -> float:
        """Rate of each active peer."""
        return min(self._rates.untrusted_peer, self._rates.untrusted / max(1, self.loud))


class ReadRateLimiter:
    """CPU accounts of all peers.

    ``trusted`` returns whether a peer is trusted, ``meshed`` whether it is in one of our meshes.
    """

    def __init__(
        self,
        rates: ReadRates,
        trusted: Callable[[PeerId], bool],
        meshed: Callable[[PeerId], bool] = lambda _peer: False,
        *,
        name: str = "read_accounts",
    ) -> None:
        self._rates = rates
        self._trusted = trusted
        self._meshed = meshed
        self._came = BoundedDict[PeerId, int](ACCOUNTS_MAX, name)
        """Bytes not yet in an account; most peers send little and need none."""
        self._accounts = BoundedDict[PeerId, _Account](ACCOUNTS_MAX, name)
        self.tables = (self._came, self._accounts)
        self._in_meshes, self._others = _UntrustedAccounts(rates), _UntrustedAccounts(rates)
        self._strained = False
        """True if either group of untrusted peers is over budget."""
        self._recounted_at = 0.0

    def __len__(self) -> int:
        """Return an upper bound of the number of tracked peers."""
        return max(len(self._came), len(self._accounts))

    def came(self, peer: PeerId, count: int) -> bool:
        """Record received bytes; False: no check is due, read at once."""
        came_bytes = self._add(peer, count + WAKE_BYTES)
        return came_bytes > READ_BYTES_MIN or self._strained

    def took(self, peer: PeerId, core_seconds: float, count: int) -> None:
        """Charge CPU time in excess of the ``count`` bytes already charged."""
        extra_bytes = core_seconds / self._rates.byte_seconds - count
        if extra_bytes > 0:
            self._add(peer, round(extra_bytes))

    def wait_seconds(self, peer: PeerId, now: float) -> float:
        """Return the delay before received bytes are processed."""
        self._recount(now)
        untrusted = self._kind(peer)
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = _Account(untrusted.rate)
        account.trusted = self._trusted(peer)
        if account.trusted:
            account.rate = self._rates.trusted
        else:
            untrusted.loud += account.loud_until <= now
            account.loud_until = now + LOUD_SECONDS
            account.rate = untrusted.rate
        self._settle(peer, account, now)
        if account.trusted:
            return account.wait_seconds(BURST_BYTES)
        # No burst while the group is over budget: otherwise each new key would add one.
        return account.wait_seconds(READ_BYTES_MIN if untrusted.strained else BURST_BYTES)

    def _kind(self, peer: PeerId) -> _UntrustedAccounts:
        return self._in_meshes if self._meshed(peer) else self._others

    def _add(self, peer: PeerId, count: int) -> int:
        """Return all bytes of a peer that are not yet in an account."""
        self._came[peer] = came_bytes = self._came.get(peer, 0) + count
        return came_bytes

    def _settle(self, peer: PeerId, account: _Account, now: float) -> None:
        came_bytes = self._came.pop(peer, 0)
        account.settle(came_bytes, now)
        if not account.trusted:
            self._settle_untrusted(self._kind(peer), came_bytes, now)

    def _settle_untrusted(self, untrusted: _UntrustedAccounts, came_bytes: int, now: float) -> None:
        untrusted.settle(came_bytes, now)
        self._strained = self._in_meshes.strained or self._others.strained

    def _recount(self, now: float) -> None:
        """Remove accounts without debt, and count the active peers of each group."""
        if now < self._recounted_at + RECOUNT_SECONDS:
            return
        self._recounted_at = now
        for peer, account in self._accounts.items():
            self._settle(peer, account, now)
        came = {self._in_meshes: 0, self._others: 0}
        for peer, came_bytes in self._came.items():
            if not self._trusted(peer):
                came[self._kind(peer)] += came_bytes
        for kind, came_bytes in came.items():
            self._settle_untrusted(kind, came_bytes, now)
            kind.loud = 0
        self._came.clear()
        self._accounts.retain(lambda _peer, each: each.owed_bytes > 0 or each.loud_until > now)
        for peer, each in self._accounts.items():
            self._kind(peer).loud += each.loud_until > now
