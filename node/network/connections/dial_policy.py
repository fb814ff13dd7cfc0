"""Dial policy: avoid dialling third parties on a peer's word, and back off from silent hosts.

A record can hold any address. A node therefore dials local addresses only in a local swarm. It
pauses dials to a host where nothing answered, regardless of how many keys list that host. Circuit
addresses must go through a member that relays.

Without I/O: the clock is an argument.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from node.local.addresses import host_of, is_circuit, is_local, relay_address_of
from protocol.core.containers import BoundedDict

SILENT_DIALS_MAX = 4
SILENT_SECONDS = 60.0
"""At most four dials per minute to a silent host; a guess that suits a host that restarts."""

HOSTS_MAX = 1024
"""Silent hosts that are remembered."""


class DialPolicy:
    """Dial policy of one node; ``initial`` are the addresses that it joins through.

    ``is_relay`` returns whether an address belongs to a member that relays, per its own record.
    """

    def __init__(
        self, initial: Sequence[str], is_relay: Callable[[str], bool] = lambda _address: False
    ) -> None:
        self._initial = dict.fromkeys(initial)
        self._is_relay = is_relay
        self._silent = BoundedDict[str, list[float]](HOSTS_MAX, "failed_hosts")
        """Times of failed dials per host, oldest first."""
        self.tables = (self._silent,)
        self._dialling: Counter[str] = Counter()  # pending dials per host

    def is_local(self, own: Iterable[str]) -> bool:
        """Return whether the swarm is in a local network, for a node with ``own`` addresses.

        True if the node joins through a local address, or starts a swarm with local addresses only.
        """
        if self._initial:
            return any(is_local(host_of(address)) for address in self._initial)
        return all(is_local(host_of(address)) for address in own)

    def allowed(self, addresses: Iterable[str], own: Sequence[str], now: float) -> list[str]:
        """Return the addresses that may be dialled now."""
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
        """Count pending dials towards the limit of their host."""
        doors = Counter(map(_door, addresses))
        self._dialling += doors
        try:
            yield
        finally:
            self._dialling -= doors

    def note(self, address: str, now: float, *, answered: bool) -> None:
        """Record the result of a dial."""
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
    """Return the key of failed dials: the host, or the circuit address itself.

    A relay is not silent if a peer behind it is.
    """
    return address if is_circuit(address) else host_of(address)


def _recent(dialled: Sequence[float], now: float) -> list[float]:
    return [at for at in dialled if now < at + SILENT_SECONDS]
