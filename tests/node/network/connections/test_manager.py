import asyncio

import pytest

from node.live import p2pd
from node.local.addresses import peer_of
from node.network.connections import manager as module
from node.network.connections.address_book import AddressBook
from node.network.connections.dialer import CONNECT_SECONDS, HEAD_START_SECONDS
from node.network.connections.manager import (
    BOOTSTRAP_NETWORKS,
    CONNECTIONS_TARGET,
    POLL_SECONDS,
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
    TRIED_MAX,
    ConnectionManager,
    PeerValue,
)
from node.network.connections.peer_selection import (
    AGAIN_SECONDS,
    LOOK_SECONDS,
    TARGET,
    TARGET_IF_UNTRUSTED,
    Candidates,
)
from protocol.core.crypto import verify
from protocol.core.rng import Rng
from protocol.core.types import PeerId, Role
from protocol.membership.roster import Roster
from roles.ports.transport import TransportError
from simulations.network.network import TRIM_SECONDS
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.network import Hub, LoopClock, eventually

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())


def address(peer):
    return f"/memory/{peer}/p2p/{peer}"


def dead(peer):
    return f"/nowhere/{peer}/p2p/{peer}"


class Net:
    """Hub of named nodes; dials to ``deaf`` ones never complete."""

    def __init__(self):
        self.hub = Hub()
        self.deaf = {}
        self.dials = []

    def peer(self, name):
        return identity(name).peer_id

    def add(self, *names):
        for name in names:
            self.hub.transport(self.peer(name))

    def table(self, *initial, seed=b"1", **value):
        """Return the connection manager under test."""
        transport = self.hub.transport(self.peer("ours"))
        connect = transport.connect

        async def dial(target):
            self.dials.append(target)
            if target.startswith("/nowhere/"):
                await asyncio.sleep(3600)
            return await connect(target)

        transport.connect = dial
        known = [address(self.peer(name)) for name in initial]
        self.roster = Roster(WORLD.manifest, verify)
        return ConnectionManager(
            transport, LoopClock(), Rng(seed), known, self.roster, PeerValue(**value)
        )

    def tell(self, name, *, at=None, **changes):
        """Add a member's record, by default with its real address."""
        own = identity(name)
        now = LoopClock().now()
        changes.setdefault("addresses", (address(own.peer_id),) if at is None else at)
        record = WORLD.record(own, (str(Role.RELAY),), sequence=round(now * 1000), **changes)
        self.roster.offer(record, now)
        return own.peer_id


def connected(net, name):
    return net.hub.connected(net.peer("ours"), net.peer(name))


async def test_a_bootstrap_peer_is_dialled_and_its_absence_is_told():
    net = Net()
    ours = net.table("boot")
    reaching = asyncio.create_task(ours.reach())
    await asyncio.sleep(60)
    assert ours.unreachable_since is not None
    place = address(net.peer("boot")).rpartition("/p2p/")[0]
    assert ours.unreachable.startswith(f"looking for peers; no bootstrap peer answers ({place} ")
    net.add("boot")
    await asyncio.wait_for(reaching, 1.5 * RETRY_SECONDS_MAX + 1)
    assert ours.connected == [net.peer("boot")]
    assert ours.unreachable_since is None
    assert ours.unreachable == ""


async def test_dials_back_off():
    net = Net()
    ours = net.table("boot")
    reaching = asyncio.create_task(ours.reach())
    await asyncio.sleep(600)
    assert 30 < len(net.dials) < 100
    reaching.cancel()


async def test_a_peer_that_connects_to_us_ends_the_search_at_once():
    net = Net()
    ours = net.table("boot")
    reaching = asyncio.create_task(ours.reach())
    await asyncio.sleep(100)
    net.add("friend")
    net.hub.connect(net.peer("friend"), net.peer("ours"))
    await asyncio.wait_for(reaching, 2 * POLL_SECONDS)


async def test_the_first_node_of_a_run_has_nobody_to_dial():
    net = Net()
    ours = net.table("ours")
    assert await asyncio.wait_for(ours.reach(), 1) == []
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(10)
    assert net.dials == []
    net.add("friend")
    net.hub.connect(net.peer("friend"), net.peer("ours"))
    await asyncio.sleep(2 * POLL_SECONDS)
    assert ours.connected == [net.peer("friend")]
    running.cancel()


async def test_members_are_dialled_until_there_are_enough(monkeypatch):
    monkeypatch.setattr(module, "CONNECTIONS_TARGET", 4)
    net = Net()
    names = [f"member {n}" for n in range(8)]
    net.add("boot", "hidden", *names)
    ours = net.table("boot")
    await ours.reach()
    for name in names:
        net.tell(name)
    net.tell("hidden", reachable=False)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(20)
    assert 4 <= len(ours.connected) <= 5
    assert not connected(net, "hidden")
    running.cancel()


@pytest.mark.parametrize("own_reputation", [True, False])
async def test_a_node_keeps_connections_to_trusted_peers(monkeypatch, own_reputation):
    """Regardless of the number of untrusted peers; a new node has few such connections."""
    monkeypatch.setattr(module, "CONNECTIONS_TARGET", 4)
    net = Net()
    untrusted = [f"untrusted {n}" for n in range(40)]
    trusted = [f"trusted {n}" for n in range(TARGET + 4)]
    net.add(*untrusted, *trusted)
    reputable = {net.peer(name) for name in trusted}
    if own_reputation:
        reputable.add(net.peer("ours"))
    ours = net.table(*untrusted[:1], trusted=reputable.__contains__)
    for name in untrusted:
        net.hub.connect(net.peer(name), net.peer("ours"))
        net.tell(name)
    await ours.reach()
    for name in trusted:
        net.tell(name)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(2 * RETRY_SECONDS_MAX)
    here = reputable.intersection(ours.connected)
    assert len(here) == (TARGET if own_reputation else TARGET_IF_UNTRUSTED)
    assert here <= set(ours.chosen)
    running.cancel()


async def test_a_new_node_looks_for_trusted_peers_before_it_has_all_its_connections():
    """All its current connections may break a moment later."""
    net = Net()
    untrusted = [f"untrusted {n}" for n in range(200)]
    net.add("boot", *untrusted, "trusted 0", "trusted 1")
    trusted = {net.peer("trusted 0"), net.peer("trusted 1")}
    ours = net.table("boot", trusted=trusted.__contains__)
    for name in (*untrusted, "trusted 0", "trusted 1"):
        net.tell(name)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(3 * POLL_SECONDS)
    assert trusted <= set(ours.connected)
    assert len(trusted) < len(ours.connected) < CONNECTIONS_TARGET, "beside others"
    running.cancel()


async def test_node_without_peers_dials_trusted_peers_among_the_first():
    net = Net()
    names = [f"untrusted {n}" for n in range(200)] + ["trusted"]
    ours = net.table(trusted=lambda peer: peer == net.peer("trusted"))
    for name in names:
        net.tell(name, at=(dead(net.peer(name)),))
    reaching = asyncio.create_task(ours.reach())
    await asyncio.sleep(RETRY_SECONDS_MIN / 4)
    assert net.peer("trusted") in map(peer_of, net.dials)
    assert len(net.dials) <= TRIED_MAX + 1
    reaching.cancel()


async def test_members_that_do_not_answer_keep_us_from_nothing():
    """Each lists eight dead addresses; connected peers stay visible."""
    net = Net()
    net.add("boot", "friend")
    ours = net.table("boot")
    for n in range(6):
        peer = net.peer(f"liar {n}")
        net.tell(f"liar {n}", at=tuple(dead(peer) for _ in range(8)))
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(5)
    assert ours.connected == [net.peer("boot")]
    began = LoopClock().now()
    assert not await ours.ensure(net.peer("liar 0"))
    assert LoopClock().now() - began <= CONNECT_SECONDS + 1
    net.hub.connect(net.peer("friend"), net.peer("ours"))
    net.hub.disconnect(net.peer("boot"), net.peer("ours"))
    await asyncio.sleep(2 * POLL_SECONDS)
    assert ours.connected == [net.peer("friend")]
    running.cancel()


async def test_one_good_address_among_dead_ones_is_enough():
    net = Net()
    net.add("member")
    ours = net.table()
    peer = net.peer("member")
    net.tell("member", at=(dead(peer), dead(peer), address(peer)))
    assert await asyncio.wait_for(ours.ensure(peer), 1)
    assert await ours.ensure(peer)


async def test_when_one_address_has_answered_the_other_dials_end():
    net = Net()
    net.add("member")
    ours = net.table()
    peer = net.tell("member", at=(dead(net.peer("member")), address(net.peer("member"))))
    before = len(asyncio.all_tasks())
    assert await ours.ensure(peer)
    await asyncio.sleep(1)
    assert len(net.dials) == 2
    assert len(asyncio.all_tasks()) == before


async def test_a_member_that_did_not_answer_is_left_alone_for_a_while():
    net = Net()
    net.add("boot")
    ours = net.table("boot")
    await ours.reach()
    peer = net.peer("gone")
    net.tell("gone", at=(dead(peer),))
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(RETRY_SECONDS_MAX - 1)
    assert net.dials.count(dead(peer)) == 1
    await asyncio.sleep(3 * RETRY_SECONDS_MAX)
    assert 2 <= net.dials.count(dead(peer)) <= 4
    running.cancel()


async def test_members_that_have_fallen_silent_are_not_dialled():
    net = Net()
    net.add("boot", "silent")
    ours = net.table("boot")
    await ours.reach()
    net.tell("silent")
    await asyncio.sleep(WORLD.manifest.epochs.record_epochs * WORLD.manifest.epochs.seconds + 1)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(30)
    assert net.roster.get(net.peer("silent")) is not None
    assert not connected(net, "silent")
    running.cancel()


async def test_after_a_long_search_the_next_one_begins_quickly_again():
    net = Net()
    ours = net.table("boot")
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(300)
    net.add("boot")
    await eventually(lambda: connected(net, "boot"), 2 * RETRY_SECONDS_MAX)
    await asyncio.sleep(5)
    net.hub.remove(net.peer("boot"))
    net.dials.clear()
    await asyncio.sleep(12)
    assert len(net.dials) >= 3
    running.cancel()


async def test_an_address_of_somebody_else_is_not_dialled():
    net = Net()
    net.add("victim")
    ours = net.table()
    peer = net.tell("liar", at=(address(net.peer("victim")),))
    assert not await ours.ensure(peer)
    assert not await ours.ensure(net.peer("untrusted"))
    assert net.dials == []


async def test_node_that_lost_all_peers_rejoins_without_its_bootstrap_peer():
    net = Net()
    net.add("boot", "member")
    ours = net.table("boot")
    net.tell("member")
    running = asyncio.create_task(ours.run())
    await eventually(lambda: connected(net, "member"), 10)
    net.hub.remove(net.peer("boot"))
    net.hub.partition([net.peer("ours")])
    await asyncio.sleep(300)  # longer than the lifetime of a record
    net.roster.advance(LoopClock().now())
    assert ours.connected == []
    net.hub.heal()
    await eventually(lambda: ours.connected == [net.peer("member")], 40)
    running.cancel()


async def test_node_with_inbound_connections_only_dials_members():
    net = Net()
    net.add("boot", "member")
    ours = net.table("boot")
    net.hub.remove(net.peer("boot"))
    net.tell("member")
    assert await asyncio.wait_for(ours.reach(), 5) == [net.peer("member")]


async def test_node_that_lost_many_peers_dials_few_at_once():
    net = Net()
    ours = net.table()
    friends = [f"friend {n}" for n in range(20)]
    net.add(*friends)
    for name in friends:
        net.tell(name)
        assert await ours.ensure(net.peer(name))
    for n in range(20):
        net.tell(f"untrusted {n}", at=(dead(net.peer(f"untrusted {n}")),))
    for name in friends:
        net.hub.remove(net.peer(name))
    net.dials.clear()
    reaching = asyncio.create_task(ours.reach())
    await asyncio.sleep(RETRY_SECONDS_MIN / 4)
    assert 0 < len(net.dials) <= 2 * TRIED_MAX
    await asyncio.sleep(100 * RETRY_SECONDS_MAX)
    assert len(dict.fromkeys(net.dials)) == 40, "but in the end it tries everybody"
    reaching.cancel()


async def test_memory_of_dialled_members_is_bounded():
    net = Net()
    net.add("boot")
    ours = net.table("boot")
    running = asyncio.create_task(ours.run())
    for n in range(100):
        net.tell(f"passing {n}")
        await asyncio.sleep(3)
        net.roster.__init__(WORLD.manifest, verify)
    assert len(ours._candidates._dialled_at) <= 2 * AGAIN_SECONDS / POLL_SECONDS
    running.cancel()


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_transport_that_is_down_has_no_peers(hangs):
    net = Net()
    net.add("boot")
    ours = net.table("boot")
    await ours.reach()
    transport = net.hub.transports[net.peer("ours")]
    peers = transport.peers

    async def fail():
        if hangs:
            await asyncio.sleep(3600)
        raise TransportError("down")

    transport.peers = fail
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(CONNECT_SECONDS + 1)
    assert ours.connected == []
    transport.peers = peers
    await asyncio.sleep(CONNECT_SECONDS + 1)
    assert ours.connected == [net.peer("boot")]
    running.cancel()


async def test_a_stream_to_a_member_is_dialled_first():
    net = Net()
    net.add("member")
    ours = net.table()
    peer = net.tell("member")
    assert ours.peer_id == net.peer("ours")
    with pytest.raises(TransportError, match="not connected"):
        await ours.open_stream(net.peer("untrusted"), "/x")

    async def echo(stream):
        await stream.write(await stream.read_exactly(2))

    await net.hub.transports[peer].handle("/x", echo)
    await ours.handle("/x", echo)
    stream = await ours.open_stream(peer, "/x")
    await stream.write(b"hi")
    assert await stream.read_exactly(2) == b"hi"


async def test_chosen_are_bootstrap_peers_and_members_dialled_by_chance_but_nobody_for_a_stream():
    net = Net()
    net.add("boot", "member", "guest", "wanted")
    ours = net.table("boot")
    await ours.reach()
    assert net.peer("boot") in ours.chosen
    net.tell("wanted")
    net.hub.connect(net.peer("guest"), net.peer("ours"))
    assert await ours.ensure(net.peer("wanted"))
    net.tell("member")
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(5 * POLL_SECONDS)
    assert sorted(ours.connected) == sorted(map(net.peer, ("boot", "guest", "member", "wanted")))
    chosen = [
        name for name in ("boot", "guest", "member", "wanted") if net.peer(name) in ours.chosen
    ]
    assert chosen == ["boot", "member"]
    running.cancel()


async def test_outbound_peer_that_reconnects_by_itself_is_inbound():
    net = Net()
    net.add("boot", "other")
    ours = net.table("boot")
    await ours.reach()
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(POLL_SECONDS)
    net.hub.connect(net.peer("other"), net.peer("ours"))
    await ours.disconnect(net.peer("boot"))
    await asyncio.sleep(2 * POLL_SECONDS)
    net.hub.connect(net.peer("boot"), net.peer("ours"))
    await asyncio.sleep(2 * POLL_SECONDS)
    assert net.peer("boot") in ours.connected
    assert net.peer("boot") not in ours.chosen
    running.cancel()


async def test_peers_are_located_once_and_again_when_they_come_back():
    net = Net()
    net.add("guest")
    ours, asked = net.table(), []
    guest = net.peer("guest")

    async def remote_addresses(peer):
        asked.append(peer)
        if len(asked) == 1:
            raise TransportError("p2pd is not there")
        return ["/ip4/93.184.216.34/tcp/1", "/ip4/93.184.216.34/tcp/2", "/ip4/127.0.0.1/tcp/3"]

    net.hub.transports[net.peer("ours")].remote_addresses = remote_addresses
    running = asyncio.create_task(ours.run())
    net.hub.connect(guest, net.peer("ours"))
    await asyncio.sleep(0.5 * POLL_SECONDS)
    assert ours.places.get(guest, ()) == ()
    await asyncio.sleep(5 * POLL_SECONDS)
    assert ours.places.get(guest, ()) == ("93.184.216.34",)
    assert asked == [guest, guest]
    await ours.disconnect(guest)
    await asyncio.sleep(2 * POLL_SECONDS)
    assert ours.places.get(guest, ()) == ()
    net.hub.connect(guest, net.peer("ours"))
    await asyncio.sleep(2 * POLL_SECONDS)
    assert len(asked) == 3
    running.cancel()


async def test_circuit_addresses_need_the_relays_own_record():
    net = Net()
    net.add("relay", "home")
    table = net.table("relay")
    relay, home = net.peer("relay"), net.peer("home")
    way = f"{address(relay)}/p2p-circuit/p2p/{home}"
    net.tell("home", at=(way,))
    assert not await table.ensure(home)
    net.tell("relay")
    assert await table.ensure(home)
    assert net.dials == [way]
    await asyncio.sleep(1000)
    net.hub.disconnect(net.peer("ours"), home)
    await table.reach()
    net.dials.clear()
    net.tell("home", at=(f"/sim/elsewhere/p2p/{relay}/p2p-circuit/p2p/{home}",))
    net.tell("relay")
    assert not await table.ensure(home)
    net.tell("home", at=(way,))
    assert net.dials == []
    assert way not in table.reachable_addresses()


async def test_swarm_is_local_if_joined_or_started_at_a_local_address():
    net = Net()
    assert not net.table("friend").in_local_swarm
    table = net.table()
    await table.reach()
    assert not table.in_local_swarm, "names of a simulation are global"

    async def at_home():
        return ["/ip4/192.168.1.2/tcp/1"]

    net.hub.transports[net.peer("ours")].addresses = at_home
    await table.reach()
    assert table.in_local_swarm


async def test_members_to_dial_are_spread_over_networks_and_kept_before_those_that_dialled_us():
    net = Net()
    table = net.table("near 0")
    crowd = [f"near {number}" for number in range(20)]
    net.add(*crowd, "apart", "visitor")
    await table.reach()
    for number, name in enumerate(crowd):
        peer = net.peer(name)
        net.tell(name, at=(f"/ip4/9.9.{number}.1/tcp/1/p2p/{peer}",))
    apart, visitor = net.peer("apart"), net.peer("visitor")
    net.tell("apart", at=(f"/ip4/8.8.8.8/tcp/1/p2p/{apart}",))
    net.tell("visitor", at=(f"/ip4/7.7.7.7/tcp/1/p2p/{visitor}",), reachable=False)
    book = AddressBook(net.roster, LoopClock())
    candidates = Candidates(net.peer("ours"), net.roster, book, LoopClock(), Rng(b"1"))
    chosen = [net.peer(name) for name in crowd[:2]]

    def drawn():
        return candidates.draw(0.0, [*chosen, visitor], chosen, lambda _peer: True)

    assert drawn() == apart
    others = {drawn() for _ in range(18)}
    assert others == {net.peer(name) for name in crowd[2:]}, "better than nobody"
    assert drawn() is None
    for name in ("near 1", "visitor"):
        net.hub.connect(net.peer("ours"), net.peer(name))
    await table.reach()
    hosts = [kept.split("/")[2] for kept in table.reachable_addresses()]
    assert hosts[:3] == ["9.9.0.1", "7.7.7.7", "9.9.1.1"], "one of each network first"


async def test_a_node_joins_through_bootstrap_peers_of_several_networks_and_then_no_more():
    net = Net()
    names = [f"boot {number}" for number in range(6)]
    net.add(*names[1:])  # one never answers
    ours = net.table(*names)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(60)
    assert len(ours.connected) == BOOTSTRAP_NETWORKS
    assert ours.chosen == set(ours.connected)
    dials = len(net.dials)
    await asyncio.sleep(600)
    assert len(net.dials) == dials, "it is content"
    running.cancel()


async def test_a_bootstrap_peer_that_is_alone_is_enough_and_the_others_are_not_dialled_often():
    net = Net()
    net.add("boot")
    ours = net.table("boot", *(f"dead {number}" for number in range(20)))
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(600)
    assert ours.connected == [net.peer("boot")]
    assert len(net.dials) < 600, "four every seven seconds, and all of them once"
    assert set(net.dials[-40:]) > {address(net.peer("dead 19")), address(net.peer("dead 0"))}
    running.cancel()


async def test_an_address_that_failed_is_dialled_after_one_that_did_not():
    net = Net()
    net.add("member")
    ours, peer = net.table(), net.peer("member")
    bad, good = f"/sim/nowhere/p2p/{peer}", address(peer)
    net.tell("member", at=(bad,))
    assert not await ours.ensure(peer)
    net.dials.clear()
    await asyncio.sleep(1)
    net.tell("member", at=(bad, good))
    assert await ours.ensure(peer)
    await asyncio.sleep(2 * HEAD_START_SECONDS)
    assert net.dials == [good]


async def test_reachable_addresses_are_of_connected_members_then_of_earlier_answers():
    net = Net()
    net.add("here", "gone", "boot")
    ours = net.table("boot")
    for name in ("here", "gone"):
        net.tell(name)
        assert await ours.ensure(net.peer(name))
    await ours.disconnect(net.peer("gone"))
    await ours.reach()
    there = [address(net.peer(name)) for name in ("here", "gone")]
    assert ours.reachable_addresses() == there


@pytest.fixture
def at_most_ten(monkeypatch):
    """Above ten connections a node prunes down to eight."""
    monkeypatch.setattr(module, "CONNECTIONS_HIGH", 10)
    monkeypatch.setattr(module, "CONNECTIONS_LOW", 8)


def beside_a_worker(net, count, *initial, **value):
    """Add untrusted peers and one trusted worker; return them and the connection manager."""
    untrusted = [f"untrusted {number}" for number in range(count)]
    net.add(*untrusted, "worker")
    return untrusted, net.table(*initial, trusted=lambda peer: peer == net.peer("worker"), **value)


@pytest.mark.usefixtures("at_most_ten")
async def test_pruning_keeps_outbound_meshed_and_trusted_peers():
    net = Net()
    meshed = frozenset({net.peer("meshed")})
    untrusted, ours = beside_a_worker(net, 10, "chosen", meshed=lambda: meshed)
    net.add("chosen", "meshed")
    await ours.reach()
    for name in untrusted[:9]:
        net.hub.connect(net.peer(name), net.peer("ours"))
    await ours.reach()
    assert len(ours.connected) == 10, "as many as there may be"
    for name in ("untrusted 9", "worker", "meshed"):
        net.hub.connect(net.peer(name), net.peer("ours"))
    await ours.reach()
    stayed = [net.peer(name) for name in ("chosen", *untrusted[:5], "worker", "meshed")]
    assert ours.connected == stayed, "of the others, the first that came"
    assert not connected(net, "untrusted 9")


@pytest.mark.usefixtures("at_most_ten")
async def test_connections_of_peers_below_the_gossip_threshold_are_pruned_first():
    net = Net()
    floods: set[PeerId] = set()
    untrusted, ours = beside_a_worker(
        net,
        11,
        above_gossip_threshold=lambda peers: [peer for peer in peers if peer not in floods],
    )
    floods |= {net.peer(name) for name in untrusted[:2]}
    for name in untrusted:
        net.hub.connect(net.peer(name), net.peer("ours"))
    await ours.reach()
    assert ours.connected == [net.peer(name) for name in untrusted[2:10]]


async def test_burst_of_untrusted_peers_does_not_displace_kept_connections():
    """More than p2pd's limit arrive before the next scan: it prunes the others."""
    net = Net()
    untrusted = [f"untrusted {number}" for number in range(p2pd.CONNECTIONS_HIGH)]
    net.add(*untrusted, "chosen", "worker", "meshed", "guest", "left")
    reputable = {net.peer("worker"), net.peer("left")}
    meshed = frozenset({net.peer("meshed")})
    ours = net.table("chosen", trusted=reputable.__contains__, meshed=lambda: meshed)
    for name in ("guest", "worker", "meshed", "left"):
        net.hub.connect(net.peer(name), net.peer("ours"))
    await ours.reach()
    reputable.discard(net.peer("left"))
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(LOOK_SECONDS + 2 * POLL_SECONDS)
    running.cancel()
    for name in untrusted:
        net.hub.connect(net.peer(name), net.peer("ours"))
    await asyncio.sleep(TRIM_SECONDS)
    assert len(net.hub.network.hosts[net.peer("ours")].connections) < len(untrusted)
    names = ("chosen", "worker", "meshed", "guest", "left")
    stayed = [name for name in names if connected(net, name)]
    assert stayed == ["chosen", "worker", "meshed"]


@pytest.mark.usefixtures("at_most_ten")
async def test_streams_beyond_the_connection_limit_are_not_served():
    net, served = Net(), []
    untrusted, ours = beside_a_worker(net, 20)

    async def serve(stream):
        served.append(stream.peer)

    await ours.handle("p", serve)
    for name in (*untrusted, "untrusted 0", "worker"):
        peer = net.peer(name)
        net.hub.connect(peer, net.peer("ours"))
        await net.hub.transports[peer].open_stream(net.peer("ours"), "p")
    await asyncio.sleep(0)
    expected = [net.peer(name) for name in (*untrusted[:11], "untrusted 0", "worker")]
    assert served == expected
    assert ours.connected == [*expected[:11], expected[-1]]


@pytest.mark.usefixtures("at_most_ten")
async def test_a_stream_beyond_the_connection_limit_starts_pruning_before_the_next_poll():
    net = Net()
    untrusted, ours = beside_a_worker(net, 12)

    async def serve(_stream):
        pass

    await ours.handle("p", serve)
    running = asyncio.create_task(ours.run())
    await asyncio.sleep(POLL_SECONDS / 4)
    for name in untrusted:
        net.hub.connect(net.peer(name), net.peer("ours"))
    transports = [net.hub.transports[net.peer(name)] for name in untrusted]
    opened = (transport.open_stream(net.peer("ours"), "p") for transport in transports)
    await asyncio.gather(*opened, return_exceptions=True)
    await asyncio.sleep(POLL_SECONDS / 4)
    assert len(ours.connected) == 8
    running.cancel()


@pytest.mark.usefixtures("at_most_ten")
async def test_dials_in_progress_reserve_connections():
    net = Net()
    untrusted, ours = beside_a_worker(net, 9)
    members = [f"member {number}" for number in range(5)]
    for name in members:
        net.tell(name, at=(dead(net.peer(name)),))
    asked = [asyncio.create_task(ours.ensure(net.peer(name))) for name in members]
    await asyncio.sleep(0)
    for name in untrusted:
        net.hub.connect(net.peer(name), net.peer("ours"))
    await ours.reach()
    assert ours.connected == [net.peer(name) for name in untrusted[:3]], "three and five: eight"
    assert not any(await asyncio.gather(*asked))


@pytest.mark.usefixtures("at_most_ten")
async def test_dials_beyond_the_connection_limit_are_refused():
    net = Net()
    untrusted, ours = beside_a_worker(net, 20)
    for name in (*untrusted, "worker"):
        net.tell(name)
    asked = [ours.ensure(net.peer(name)) for name in (*untrusted, "worker")]
    assert await asyncio.gather(*asked) == [True] * 11 + [False] * 9 + [True]
    assert len(ours.connected) == 12
    assert await ours.ensure(net.peer("untrusted 0")), "it is connected"
    assert not await ours.ensure(net.peer("untrusted 19"))
    await ours.reach()
    assert await ours.ensure(net.peer("untrusted 19"))
