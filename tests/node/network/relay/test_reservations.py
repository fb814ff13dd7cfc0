import asyncio

import pytest

from node.network.relay.relay import RESERVATION_SECONDS, CircuitRelay
from node.network.relay.reservations import RELAYS_TARGET, RETRY_SECONDS, Reservations
from node.network.resources.upload_scheduler import UploadScheduler
from tests.node.network.relay.circuit_nodes import Swarm

pytestmark = pytest.mark.virtual


class Reachability:
    reachable = False


class World(Swarm):
    """A node at home, and relays at addresses of their own."""

    def __init__(self, **relays):
        super().__init__("home", *relays)
        self.home, *nodes = self.nodes
        self.places = dict(zip(relays, nodes, strict=True))
        self.at = relays
        self.relays = {}
        self.reachability = Reachability()
        self.reservations = Reservations(self.home.context, self.reachability)
        self.changes = 0

    def changed(self):
        self.changes += 1

    async def refresh(self):
        while True:
            self.tell(self.home)
            for name, node in self.places.items():
                self.tell(node, at=self.at[name])
            await asyncio.sleep(10)

    async def begin(self):
        self.tasks = [asyncio.create_task(self.refresh())]
        for name, node in self.places.items():
            self.relays[name] = CircuitRelay(node.context, UploadScheduler(None))
            await self.relays[name].start()
        self.tasks.append(asyncio.create_task(self.reservations.run(self.changed)))
        await asyncio.sleep(1)

    @property
    def used(self):
        """The relays in the announced addresses."""
        return {
            name
            for name, node in self.places.items()
            for address in self.reservations.addresses
            if f"/p2p/{node.peer}/p2p-circuit/p2p/{self.home.peer}" in address
        }


async def begun(**relays):
    world = World(**relays)
    await world.begin()
    return world


FIRST, SECOND, NEAR, LOCAL = (
    f"/ip4/{host}/tcp/4001" for host in ("9.9.9.9", "8.8.8.8", "9.9.1.1", "192.168.1.1")
)


async def test_two_relays_of_different_networks_are_used():
    near = {f"near {number}": NEAR for number in range(8)}
    world = await begun(**near, apart=SECOND)
    assert len(world.reservations.addresses) == RELAYS_TARGET == 2
    assert "apart" in world.used
    assert world.changes == 1
    held = [name for name, relay in world.relays.items() if relay.reservations]
    assert set(held) == world.used


async def test_the_address_is_the_relays_own_word_and_not_of_a_local_network():
    world = await begun(one=FIRST, hidden=LOCAL)
    (address,) = world.reservations.addresses
    relay = world.places["one"].peer
    assert address == f"{FIRST}/p2p/{relay}/p2p-circuit/p2p/{world.home.peer}"


async def test_a_peer_that_can_be_dialled_needs_no_relay():
    world = await begun(one=FIRST)
    world.reachability.reachable = True
    await asyncio.sleep(10)
    assert world.reservations.addresses == ()
    assert world.changes == 2


async def test_reservations_are_renewed_before_they_end():
    world = await begun(one=FIRST)
    await asyncio.sleep(3 * RESERVATION_SECONDS)
    assert world.used == {"one"}
    assert world.relays["one"].reservations == 1
    await world.relays["one"]._forget()
    assert world.relays["one"].reservations == 1, "it has not expired"
    assert world.changes == 1


async def test_a_relay_that_goes_is_replaced():
    world = await begun(one=FIRST, two=SECOND, three="/ip4/1.1.1.1/tcp/1")
    gone = next(iter(world.used))
    world.hub.remove(world.places[gone].peer)
    await asyncio.sleep(30)
    assert len(world.used) == 2
    assert gone not in world.used


async def test_a_relay_that_refuses_is_left_alone_for_a_while():
    world = await begun(one=FIRST)
    node, asked = world.places["one"], []

    async def refuse(stream):
        asked.append(asyncio.get_running_loop().time())
        await stream.close()

    world.hub.disconnect(node.peer, world.home.peer)
    await node.transport.handle("/libp2p/circuit/relay/0.2.0/hop", refuse)
    await asyncio.sleep(3 * RETRY_SECONDS)
    assert world.used == set()
    assert 3 <= len(asked) <= 5


async def test_members_that_are_no_relays_are_not_asked():
    world = await begun(one=FIRST, two=SECOND)
    world.tasks[0].cancel()
    world.reachability.reachable = True
    await asyncio.sleep(30)
    world.tell(world.places["one"], roles=("inference",))
    world.tell(world.places["two"], reachable=False)
    world.reachability.reachable = False
    await asyncio.sleep(10)
    assert world.used == set()
