"""Dial-backs between two to a dozen nodes of a simulated network, some behind NAT."""

import asyncio

import pytest

from node.context import NodeContext, Ports
from node.local.addresses import host_of, is_local
from node.network.reachability.autonat import OBSERVERS, Reachability, dialled_back
from node.network.reachability.observations import UNTRUSTED_MAX, ReachabilityProber
from node.network.streams.framing import write_frame
from node.network.streams.protocols import DIAL_BACK, SAMPLE_BYTES_MAX
from protocol.core.crypto import public_key_from_peer_id
from protocol.core.rng import Rng
from protocol.core.types import rate_class
from protocol.membership.measured_capacity import AGE_EPOCHS
from protocol.messages import OBSERVATIONS_MAX
from protocol.replica.replica import Replica
from roles.ports.transport import TransportError, Trust
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.network import (
    LINE_BYTES_PER_SECOND,
    Hub,
    HubPeers,
    LoopClock,
    address,
)

pytestmark = pytest.mark.virtual

EPOCH_SECONDS = 10


class Node:
    def __init__(self, swarm, name):
        self.identity, hub = identity(name), swarm.hub
        self.peer = self.identity.peer_id
        self.transport = hub.transport(self.peer)
        self.host = hub.network.hosts[self.peer]
        self.replica = Replica(swarm.world.manifest, lambda *_: True)
        self.clock = LoopClock()
        ports = Ports(self.clock, Rng(name.encode()), self.transport, *[None] * 5)
        self.peers = HubPeers(self.transport, hub)
        self.context = NodeContext(
            self.identity,
            self.replica,
            ports,
            self.peers,
            ChangeSignal(),
            Conditions(),
            Trust(swarm.trusted.__contains__),
        )
        self.witness = ReachabilityProber(self.context)
        self.reachability = Reachability(self.context, self.witness.finding_seconds, None)


class Swarm:
    def __init__(self, count=6):
        genesis = run_manifest().genesis.model_copy(update={"created_at": round(LoopClock().now())})
        self.world = World(run_manifest().model_copy(update={"genesis": genesis}))
        self.hub, self.trusted = Hub(), set()
        self.nodes = [Node(self, f"node {number}") for number in range(count)]
        self.trusted |= {node.peer for node in self.nodes}

    async def begin(self):
        """Start, and exchange records."""
        for node in self.nodes:
            await node.witness.start()
        self.refresh()

    def refresh(self):
        now = LoopClock().now()
        for node in self.nodes:
            record = self.world.record(
                node.identity, ("relay",), sequence=round(now * 1000), joined_at=1
            )
            for other in self.nodes:
                assert other.replica.roster.offer(record, now) is not None

    async def run(self, *nodes, epochs=12):
        tasks = [asyncio.create_task(node.reachability.run()) for node in nodes]
        for _ in range(epochs):
            await asyncio.sleep(EPOCH_SECONDS)
            self.refresh()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def asked(node, witness, said, sample_bytes=SAMPLE_BYTES_MAX):
    stream = await node.peers.open_stream(witness.peer, DIAL_BACK.on(node.replica.run_id))
    try:
        return await dialled_back(stream, said.split(), sample_bytes)
    finally:
        await stream.close()


def key(node):
    return public_key_from_peer_id(node.peer)


async def test_who_can_be_reached_is_found_by_the_others_and_measured():
    swarm = Swarm()
    await swarm.begin()
    open_, hidden, slow, *others = swarm.nodes
    hidden.host.nat = True
    swarm.hub.network.set_capacity(slow.peer, 1_000_000, LINE_BYTES_PER_SECOND)
    await swarm.run(open_, hidden, slow)
    assert open_.reachability.reachable
    assert slow.reachability.reachable
    assert not hidden.reachability.reachable
    for other in others:
        found = other.witness.findings()
        assert found[key(hidden)] == 0
        assert abs(found[key(slow)] - rate_class(1_000_000)) <= 1
        assert abs(found[key(open_)] - rate_class(int(LINE_BYTES_PER_SECOND))) <= 3


async def test_a_connection_that_is_there_is_no_proof():
    """A node behind NAT has dialled us; we still cannot dial it."""
    swarm = Swarm(2)
    await swarm.begin()
    hidden, witness = swarm.nodes
    hidden.host.nat = True
    await hidden.transport.connect(address(witness.peer))
    assert not await asked(hidden, witness, address(hidden.peer))
    assert witness.witness.findings() == {key(hidden): 0}


@pytest.mark.parametrize("whose", ["another host", "another key", "nonsense"])
async def test_nobody_is_dialled_but_where_who_asks_comes_from(whose):
    swarm = Swarm(3)
    await swarm.begin()
    asker, witness, victim = swarm.nodes
    said = {
        "another host": f"/sim/{victim.peer}/p2p/{asker.peer}",
        "another key": address(victim.peer),
        "nonsense": "\0\xff",
    }[whose]
    dials = []
    witness.transport.probe = dials.append
    with pytest.raises(TransportError):
        await asked(asker, witness, said)
    assert dials == []
    assert witness.witness.findings() == {}


async def test_an_address_of_a_local_network_is_tried_by_nodes_of_that_only():
    swarm = Swarm(2)
    await swarm.begin()
    asker, witness = swarm.nodes
    said = f"/ip4/192.168.1.7/tcp/1/p2p/{asker.peer}"
    ours = ["/ip4/192.168.1.8/tcp/1"]
    dials = []

    async def probe(target):
        dials.append(target)

    async def remote_addresses(_peer):
        return ["/ip4/192.168.1.7/tcp/50000"]

    async def addresses():
        return ours

    witness.transport.probe = probe
    witness.transport.remote_addresses = remote_addresses
    witness.transport.addresses = addresses
    ours.append("/ip4/8.8.8.8/tcp/1")
    with pytest.raises(TransportError):
        await asked(asker, witness, said)
    ours.pop()
    loopback = f"/ip4/127.0.0.1/tcp/1/p2p/{asker.peer}"
    assert await asked(asker, witness, f"{loopback}\n{said}")
    assert dials == [said], "where it comes from, of all that it says"


async def test_who_asks_again_soon_is_told_the_same_and_not_dialled():
    swarm = Swarm(2)
    await swarm.begin()
    asker, witness = swarm.nodes
    assert await asked(asker, witness, address(asker.peer))
    await asyncio.sleep(1)
    asker.host.nat = True
    assert await asked(asker, witness, address(asker.peer))
    await asyncio.sleep(witness.witness.finding_seconds / 2 + 1)
    assert not await asked(asker, witness, address(asker.peer))


async def test_findings_are_forgotten_with_time_and_with_the_member():
    swarm = Swarm(2)
    await swarm.begin()
    asker, witness = swarm.nodes
    await asked(asker, witness, address(asker.peer))
    await asyncio.sleep(1)
    assert key(asker) in witness.witness.findings()
    await asyncio.sleep(60)
    assert witness.witness.findings() == {}, "its record is too old"
    swarm.refresh()
    assert key(asker) in witness.witness.findings()
    await asyncio.sleep(witness.witness.finding_seconds)
    swarm.refresh()
    assert witness.witness.findings() == {}


async def test_we_speak_for_proven_keys_first_and_for_few_others_that_we_know_for_a_while():
    swarm = Swarm(UNTRUSTED_MAX + 4)
    await swarm.begin()
    witness, trusted, *new = swarm.nodes
    swarm.trusted -= {node.peer for node in new}
    for node in (trusted, *new):
        await asked(node, witness, address(node.peer), 1000)
    assert list(witness.witness.findings()) == [key(trusted)]
    for _ in range(AGE_EPOCHS + 1):
        await asyncio.sleep(EPOCH_SECONDS)
        swarm.refresh()
    found = list(witness.witness.findings())
    assert found[0] == key(trusted)
    assert len(found) == 1 + UNTRUSTED_MAX <= OBSERVATIONS_MAX


async def test_a_sample_that_never_ends_is_cut_off_and_one_that_never_comes_is_the_least():
    swarm = Swarm(3)
    await swarm.begin()
    flood, silent, witness = swarm.nodes
    await asked(flood, witness, address(flood.peer), 50 * SAMPLE_BYTES_MAX)
    meter = witness.host.meters["dial-back"]
    assert meter.received < 4 * SAMPLE_BYTES_MAX
    await asked(silent, witness, address(silent.peer), 0)
    await asyncio.sleep(1)
    assert witness.witness.findings()[key(silent)] == 1


async def test_frames_that_are_too_long_are_blamed_and_many_at_once_refused():
    swarm = Swarm(2)
    await swarm.begin()
    asker, witness = swarm.nodes
    stream = await asker.peers.open_stream(witness.peer, DIAL_BACK.on(asker.replica.run_id))
    await write_frame(stream, bytes(2049), length_bytes=2)
    assert await stream.read(1) == b""
    assert [peer for peer, _ in witness.peers.blamed] == [asker.peer]
    first, second = [
        await asker.peers.open_stream(witness.peer, DIAL_BACK.on(asker.replica.run_id))
        for _ in range(2)
    ]
    assert await second.read(1) == b""
    await first.close()


async def test_no_more_are_asked_than_we_need_and_silence_is_no_answer():
    swarm = Swarm(OBSERVERS + 6)
    await swarm.begin()
    asker, dead, *others = swarm.nodes
    swarm.hub.remove(dead.peer)
    await swarm.run(asker, epochs=4)
    found = [other for other in others if key(asker) in other.witness.findings()]
    assert len(found) == OBSERVERS
    assert asker.reachability.reachable


async def test_findings_are_made_anew_before_they_lapse():
    swarm = Swarm(4)
    await swarm.begin()
    asker, *others = swarm.nodes
    task = asyncio.create_task(asker.reachability.run())
    await asyncio.sleep(EPOCH_SECONDS)
    for _ in range(60):
        await asyncio.sleep(EPOCH_SECONDS)
        swarm.refresh()
        assert all(key(asker) in other.witness.findings() for other in others)
    task.cancel()
    await asyncio.wait([task])


async def test_one_who_does_not_get_through_is_not_believed():
    swarm = Swarm(2)
    await swarm.begin()
    asker, witness = swarm.nodes

    async def probe(_address):
        raise TransportError("so it says")

    witness.transport.probe = probe
    await swarm.run(asker, epochs=2)
    assert witness.witness.findings() == {key(asker): 0}
    assert asker.reachability.reachable


def test_hosts_of_addresses():
    assert host_of("/ip4/8.8.8.8/tcp/1/p2p/x") == "8.8.8.8"
    assert host_of("/ip4") == host_of("") == ""
    assert is_local("127.0.0.1")
    assert is_local("10.1.2.3")
    assert is_local("::1")
    assert not is_local("8.8.8.8")
    assert not is_local("n-1")


async def test_a_node_whose_addresses_mean_nothing_elsewhere_is_not_reachable():
    swarm = Swarm(3)
    await swarm.begin()
    home, *_ = swarm.nodes

    async def at_home():
        return [f"/ip4/192.168.1.2/tcp/1/p2p/{home.peer}"]

    home.transport.addresses = at_home
    await swarm.run(home, epochs=1)
    assert not home.reachability.reachable
    home.peers.in_local_swarm = True
    await swarm.run(home, epochs=1)
    assert home.reachability.reachable


async def test_nobody_is_looked_for_at_the_host_of_a_relay():
    swarm = Swarm(2)
    await swarm.begin()
    asker, witness = swarm.nodes
    relay = "/ip4/9.9.9.9/tcp/1"

    async def through_a_relay(_peer):
        return [f"{relay}/p2p/x/p2p-circuit"]

    witness.transport.remote_addresses = through_a_relay
    with pytest.raises(TransportError):
        await asked(asker, witness, f"{relay}/p2p/{asker.peer}")
