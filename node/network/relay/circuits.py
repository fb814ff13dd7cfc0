"""The circuits of one node: those that it carries as a relay, and those by which it is reached."""

import asyncio
from collections.abc import Callable, Sequence

from node.context import NodeContext
from node.network.reachability.autonat import Reachability
from node.network.relay.relay import CircuitRelay
from node.network.relay.reservations import Reservations
from node.network.resources.upload_scheduler import UploadScheduler
from protocol.core.types import Role


class Circuits:
    """Does nothing where the transport has no circuits.

    A node with the role of a relay carries circuits; one that cannot be dialled keeps reservations.
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
        """What this node carries for others, if it is a relay."""
        self._reservations = Reservations(context, reachability) if here else None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where relays take connections for us."""
        return () if self._reservations is None else self._reservations.addresses

    async def start(self) -> None:
        """Serve, if this is a relay."""
        if self.relay is not None:
            await self.relay.start()

    async def run(self, changed: Callable[[], None]) -> None:
        """Stay reachable until cancelled; ``changed`` hears of other ``addresses``."""
        if self._reservations is not None:
            await self._reservations.run(changed)
        await asyncio.Event().wait()
