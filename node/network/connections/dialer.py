"""Dialler: dials permitted addresses with a deadline, and records the results."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from node.network.connections.dial_history import DialHistory
from node.network.connections.dial_policy import DialPolicy
from node.network.streams.deadline import loop_time, within
from protocol.core.types import PeerId
from roles.ports.transport import Transport, TransportError

log = structlog.get_logger()

CONNECT_SECONDS = 10.0

HEAD_START_SECONDS = 0.25
"""Delay of an address per failure more than the best one: RFC 8305's connection attempt delay."""

HEAD_STARTS_MAX = 4


class Dialler:
    """Dials for one node; ``initial`` are the addresses that it joins through.

    ``is_relay`` returns whether an address is a relay's; ``on_answer`` receives connected peers.
    """

    def __init__(
        self,
        transport: Transport,
        initial: Sequence[str],
        is_relay: Callable[[str], bool],
        on_answer: Callable[[PeerId], None],
    ) -> None:
        self._transport = transport
        self._initial = initial
        self._dials = DialPolicy(initial, is_relay)
        self._on_answer = on_answer
        self._own: list[str] = []
        self.outcomes = DialHistory()
        self.tables = (*self._dials.tables, *self.outcomes.tables)
        self.refusals: dict[str, str] = {}
        """Errors of recently dialled addresses."""
        self.dialling = 0
        """Number of peers being dialled."""
        self.failures = 0

    @property
    def in_local_swarm(self) -> bool:
        """True if the swarm is in a local network."""
        return self._dials.is_local(self._own)

    async def look_at_ourselves(self) -> None:
        """Update our own addresses if they decide whether the swarm is local."""
        if not self._initial:
            with suppress(TransportError):  # dials fail too in this case
                self._own = list(await self._transport.addresses())

    async def any(self, addresses: Sequence[str]) -> bool:
        """Dial all permitted addresses, best first; True as soon as one answers."""
        self.dialling += 1
        try:
            await self.look_at_ourselves()
            allowed = self._dials.allowed(addresses, self._own, loop_time())
            with self._dials.dialling(allowed):
                return await self._race(allowed)
        finally:
            self.dialling -= 1

    async def _race(self, allowed: Sequence[str]) -> bool:
        if len(allowed) == 1:  # the common case: no race, no task
            return await self._dial(allowed[0], head_starts=0)
        failures = [self.outcomes.failures(address) for address in allowed]
        fewest = min(failures, default=0)
        dials = [
            asyncio.create_task(self._dial(address, min(HEAD_STARTS_MAX, count - fewest)))
            for address, count in zip(allowed, failures, strict=True)
        ]
        try:
            for dial in asyncio.as_completed(dials):
                if await dial:
                    return True
        finally:
            for task in dials:
                task.cancel()
        return False

    async def _dial(self, address: str, head_starts: int) -> bool:
        if head_starts:
            await asyncio.sleep(head_starts * HEAD_START_SECONDS)
        try:
            peer = await within(CONNECT_SECONDS, self._transport.connect(address))
        except TransportError as error:
            log.debug("dial failed", address=address, error=str(error))
            self.refusals[address] = str(error) or self.refusals.get(address, "no answer")
            self._note(address, answered=False)
            self.failures += 1
            return False
        self._note(address, answered=True)
        self._on_answer(peer)
        return True

    def _note(self, address: str, *, answered: bool) -> None:
        now = loop_time()
        self._dials.note(address, now, answered=answered)
        self.outcomes.note(address, now, answered=answered)
