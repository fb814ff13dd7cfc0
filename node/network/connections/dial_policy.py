"""Which addresses are dialled: nobody's record makes us knock at doors that are not its own.

Anybody may write any address into a record. So an address of a local network is dialled only in a
swarm of that network, and a host where nothing has answered is left alone for a while, however many
keys point at it.

A machine without I/O: the clock is an argument.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from node.local.addresses import host_of, is_circuit, is_local, relay_address_of
from protocol.core.containers import BoundedDict

SILENT_DIALS_MAX = 4
SILENT_SECONDS = 60.0
"""So many dials a minute go to a host that does not answer: a guess, as often as one that restarts
would like."""

HOSTS_MAX = 1024
"""Hosts that did not answer and are remembered."""


class DialPolicy:
    """The rules for one node; ``initial`` are the addresses that it joins through.

    ``is_relay`` tells whether an address is that of a relay, by its own word.
    """

    def __init__(
        self, initial: Sequence[str], is_relay: Callable[[str], bool] = lambda _address: False
    ) -> None:
        self._initial = dict.fromkeys(initial)
        self._is_relay = is_relay
        self._silent = BoundedDict[str, list[float]](HOSTS_MAX, "silent_hosts")
        """When each host was dialled in vain, the oldest first."""
        self.tables = (self._silent,)
        self._dialling: Counter[str] = Counter()  # hosts at which nothing has answered yet

    def is_local(self, own: Iterable[str]) -> bool:
        """Return whether the swarm is one of a local network, for a node with ``own`` addresses.

        It is when we join through an address there, or begin a swarm and have no other ourselves.
        """
        if self._initial:
            return any(is_local(host_of(address)) for address in self._initial)
        return all(is_local(host_of(address)) for address in own)

    def allowed(self, addresses: Iterable[str], own: Sequence[str], now: float) -> list[str]:
        """Return those that may be dialled now."""
        local = self.is_local(own)
        return [
            address
            for address in addresses
            if address in self._initial
            or (
                (local or not is_local(host_of(address)))
                and not self._is_silent(address, now)
                and (not is_circuit(address) or self._is_relay(relay_address_of(address)))
            )
        ]

    @contextmanager
    def dialling(self, addresses: Iterable[str]) -> Iterator[None]:
        """Count dials that are on their way: together they may be too many for one host."""
        doors = Counter(map(_door, addresses))
        self._dialling += doors
        try:
            yield
        finally:
            self._dialling -= doors

    def note(self, address: str, now: float, *, answered: bool) -> None:
        """Note what came of a dial."""
        door = _door(address)
        dialled = self._silent.pop(door, [])
        if answered:
            return
        self._silent[door] = [*_recent(dialled, now), now]

    def _is_silent(self, address: str, now: float) -> bool:
        door = _door(address)
        in_vain = len(_recent(self._silent.get(door, []), now))
        return in_vain + self._dialling[door] >= SILENT_DIALS_MAX


def _door(address: str) -> str:
    """Return what does not answer when an address does not: a host, or who is behind a relay.

    A relay is not silent because somebody who says to be behind it is not there.
    """
    return address if is_circuit(address) else host_of(address)


def _recent(dialled: Sequence[float], now: float) -> list[float]:
    return [at for at in dialled if now < at + SILENT_SECONDS]
