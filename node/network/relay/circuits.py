"""Circuits of one node: those that it relays, and those through which peers reach it."""

import asyncio
from collections.abc import Callable, Sequence

from node.context import NodeContext
from node.network.reachability.autonat import Reachability
from node.network.relay.relay import CircuitRelay
from node.network.relay.reservations import Reservations
from node.network.resources.upload_scheduler import UploadScheduler
from protocol.core.types import Role


class Circuits:
    """Runs the relay and the reservations of a node; no-op on a transport without circuits.

    A node with the relay role serves circuits; a node that cannot be dialled keeps reservations.
    """

    def __init__(
        self,
        context: NodeContext,
        roles: Sequence[Role],
        reachability: Reachability,
        upload_cap: UploadScheduler,
    ) -> None:
        here = context.ports.transport.circuits
        relays = here and Role.RELAY in roles
        self.relay = CircuitRelay(context, upload_cap) if relays else None
        """The relay service, if this node has the relay role."""
        self._reservations = Reservations(context, reachability) if here else None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Circuit addresses of this node."""
        return () if self._reservations is None else self._reservations.addresses

    async def start(self) -> None:
        """Serve, if this node is a relay."""
        if self.relay is not None:
            await self.relay.start()

    async def run(self, changed: Callable[[], None]) -> None:
        """Maintain reservations until cancelled; call ``changed`` when ``addresses`` change."""
        if self._reservations is not None:
            await self._reservations.run(changed)
        await asyncio.Event().wait()
