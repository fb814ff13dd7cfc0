"""Reachability, distances, and ends of connections on the simulated network."""

import asyncio
from itertools import combinations

import pytest

from node.live import p2pd
from roles.ports.transport import TransportError
from simulations.runtime.loop import START, VirtualLoop
from tests.simulations.network.machines import (
    CONNECTIONS_HIGH,
    CONNECTIONS_LOW,
    DIAL_SECONDS_MAX,
    KEEPALIVE_SECONDS,
    PATH_SPREAD,
    PROTOCOL,
    TRIM_SECONDS,
    Machines,
    now,
)
from tests.worlds.messages import identity

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

# Dialling


async def test_a_machine_behind_nat_cannot_be_dialled_and_can_dial():
    machines = Machines()
    await machines.add("open")
    await machines.add("hidden", nat=True)
    began = now()
    with pytest.raises(TransportError, match="does not answer"):
        await machines.connect("open", "hidden")
    assert now() - began == pytest.approx(DIAL_SECONDS_MAX)
    await machines.connect("hidden", "open")
    ours, theirs = await machines.stream("open", "hidden")
    await ours.write(b"hello")
    assert await theirs.read(10) == b"hello"


async def test_two_machines_behind_nat_never_meet():
    machines = Machines()
    await machines.add("one", "other", nat=True)
    for pair in (("one", "other"), ("other", "one")):
        with pytest.raises(TransportError):
            await machines.connect(*pair)
    assert not machines.connected("one", "other")


@pytest.mark.parametrize("how", ["nobody", "self", "down"])
async def test_there_must_be_somebody_to_dial(how):
    machines = Machines()
    await machines.add("a", "b")
    machines.network.detach("b")
    name = {"nobody": "nobody", "self": "a", "down": "b"}[how]
    with pytest.raises(TransportError):
        await machines.transports["a"].connect(f"/sim/{name}/p2p/{identity(name).peer_id}")
    assert await machines.transports["a"].peers() == []


async def test_dialling_takes_four_round_trips_and_nothing_when_connected():
    machines = Machines(round_trip_seconds=0.1)
    await machines.add("a", "b")
    began = now()
    await machines.connect("a", "b")
    assert now() - began == pytest.approx(8 * machines.latency("a", "b"))
    began = now()
    await machines.connect("a", "b")
    await machines.connect("b", "a")
    assert now() == began
    assert await machines.transports["a"].peers() == [identity("b").peer_id]


async def test_two_that_dial_each_other_at_once_have_one_connection():
    machines = Machines()
    await machines.add("a", "b")
    await asyncio.gather(machines.connect("a", "b"), machines.connect("b", "a"))
    await machines.stream("a", "b")
    await machines.stream("b", "a")
    a, b = (machines.network.hosts[name] for name in "ab")
    assert a.connections[b.peer_id] is b.connections[a.peer_id]


async def test_opening_a_stream_takes_a_round_trip_and_needs_a_connection_and_a_handler():
    machines = Machines(round_trip_seconds=0.1)
    await machines.add("a", "b")
    ours, peer = machines.transports["a"], identity("b").peer_id
    with pytest.raises(TransportError, match="not connected"):
        await ours.open_stream(peer, PROTOCOL)
    await machines.connect("a", "b")
    began = now()
    await machines.stream("a", "b")
    assert now() - began == pytest.approx(2 * machines.latency("a", "b"))
    with pytest.raises(TransportError, match="not supported"):
        await ours.open_stream(peer, "/other")


# Distances


async def latencies(names, round_trip_seconds, *, region=str.upper):
    """Dial from each of ``names`` to those after it; return the latency of each pair."""
    machines = Machines(round_trip_seconds=round_trip_seconds)
    for name in names:
        await machines.add(name, region=region(name))
    found = {}
    for pair in combinations(names, 2):
        await machines.connect(*pair)
        found[frozenset(pair)] = machines.latency(*pair)
    return found


async def test_latency_is_half_of_the_round_trip_give_or_take_the_spread_of_paths():
    names = [f"m{number}" for number in range(30)]
    found = list((await latencies(names, 0.2)).values())
    assert 0.1 * (1 - PATH_SPREAD / 2) <= min(found) < 0.1 * (1 - PATH_SPREAD / 3)
    assert 0.1 * (1 + PATH_SPREAD / 3) < max(found) <= 0.1 * (1 + PATH_SPREAD / 2)
    assert sum(found) / len(found) == pytest.approx(0.1, rel=0.02)


async def test_latency_does_not_depend_on_the_dialler():
    names = ["one", "two", "three", "four"]
    assert await latencies(names, 0.2) == await latencies(names[::-1], 0.2)


async def test_latency_is_that_of_the_regions():
    def round_trip(one, other):
        return 0.01 if one == other else 0.3

    names = ["eu1", "eu2", "us1", "us2"]
    found = await latencies(names, round_trip, region=lambda name: name[:2])
    for pair, latency in found.items():
        near = len({name[:2] for name in pair}) == 1
        assert latency == pytest.approx(0.005 if near else 0.15, rel=PATH_SPREAD / 2)


# Connection limits


def test_a_machine_keeps_as_many_connections_as_the_daemon_has_p2pd_keep():
    assert (CONNECTIONS_HIGH, CONNECTIONS_LOW) == (p2pd.CONNECTIONS_HIGH, p2pd.CONNECTIONS_LOW)


async def hub_and_crowd():
    """Return machines with one called ``hub``, and the names of more peers than it keeps."""
    machines = Machines()
    names = [f"m{number}" for number in range(CONNECTIONS_HIGH + 1)]
    await machines.add("hub", *names)
    return machines, names


async def test_a_machine_that_has_too_many_connections_when_its_p2pd_looks_drops_the_oldest():
    machines, names = await hub_and_crowd()
    for name in names[:-1]:
        await machines.connect(name, "hub")
    await asyncio.sleep(TRIM_SECONDS)
    assert all(machines.connected(name, "hub") for name in names[:-1])
    await machines.connect(names[-1], "hub")
    assert machines.connected(names[0], "hub"), "it has not looked yet"
    await asyncio.sleep(TRIM_SECONDS)
    left = [name for name in names if machines.connected(name, "hub")]
    assert left == names[-CONNECTIONS_LOW:]


async def test_whom_a_machine_keeps_outlive_the_others():
    machines, names = await hub_and_crowd()
    hub = machines.transports["hub"]
    await hub.keep([machines.transports[names[5]].peer_id])
    await hub.keep([machines.transports[name].peer_id for name in names[1:4]])
    for name in names:
        await machines.connect(name, "hub")
    await asyncio.sleep(TRIM_SECONDS)
    left = [name for name in names if machines.connected(name, "hub")]
    assert left == [*names[1:4], *names[3 - CONNECTIONS_LOW :]]


async def test_a_machine_that_has_fewer_again_when_its_p2pd_looks_drops_nobody():
    machines, names = await hub_and_crowd()
    for name in names:
        await machines.connect(name, "hub")
    await machines.transports["hub"].disconnect(machines.transports[names[-1]].peer_id)
    await asyncio.sleep(TRIM_SECONDS)
    assert all(machines.connected(name, "hub") for name in names[:-1])
    await machines.connect(names[-1], "hub")
    await asyncio.sleep(TRIM_SECONDS)
    assert not machines.connected(names[0], "hub"), "it looks again"


# Faults


async def test_nobody_can_dial_across_a_cut_in_either_direction():
    machines = Machines()
    await machines.add("a", "b")
    for source, target in (("a", "b"), ("b", "a"), (None, None)):
        both = source is None
        network = machines.network
        cut = network.partition(["a"]) if both else network.one_way([source], [target])
        for pair in (("a", "b"), ("b", "a")):
            with pytest.raises(TransportError):
                await machines.connect(*pair)
        network.heal(cut)
        network.heal(cut)
        await machines.connect("a", "b")
        network.break_connections("a", "b")


async def test_a_dial_fails_when_the_way_is_cut_meanwhile():
    machines = Machines(round_trip_seconds=1.0)
    await machines.add("a", "b")
    dialling = asyncio.create_task(machines.connect("a", "b"))
    await asyncio.sleep(1)
    machines.network.one_way(["b"], ["a"])
    with pytest.raises(TransportError, match="refuses"):
        await dialling


async def test_a_stream_cannot_be_opened_across_a_cut():
    machines = Machines()
    await machines.add("a", "b")
    await machines.connect("a", "b")
    machines.network.one_way(["b"], ["a"])
    began = now()
    with pytest.raises(TransportError, match="broke"):
        await machines.stream("a", "b")
    assert KEEPALIVE_SECONDS <= now() - began < KEEPALIVE_SECONDS + 1


async def test_islands_talk_inside_and_not_to_each_other_and_the_rest_is_an_island():
    machines = Machines()
    await machines.add(*"abcdef")
    machines.network.partition(["a", "b"], ["c", "d"])
    talking = []
    for pair in combinations("abcdef", 2):
        try:
            await machines.connect(*pair)
        except TransportError:
            continue
        talking.append("".join(pair))
    assert talking == ["ab", "cd", "ef"]


async def test_of_two_cuts_the_other_stays_when_one_is_healed():
    machines = Machines()
    await machines.add("a", "b")
    ours, theirs = await machines.stream("a", "b")
    partition = machines.network.partition(["a"])
    one_way = machines.network.one_way(["a"], ["b"])
    await ours.write(b"1")
    machines.network.heal(partition)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(theirs.read(1), 5)
    machines.network.heal(one_way)
    assert await asyncio.wait_for(theirs.read(1), 1) == b"1"


async def test_a_stalled_machine_neither_sends_nor_receives_until_it_resumes():
    machines = Machines()
    await machines.add("stalled", "other", "third")
    ours, theirs = await machines.stream("stalled", "other")
    machines.network.stall("stalled")
    await ours.write(b"out")
    await theirs.write(b"in")
    for end in (ours, theirs):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(end.read(10), 5)
    for pair in (("stalled", "third"), ("third", "stalled")):
        with pytest.raises(TransportError):
            await machines.connect(*pair)
    machines.network.stall("stalled", stalled=False)
    assert await asyncio.wait_for(theirs.read(10), 1) == b"out"
    assert await asyncio.wait_for(ours.read(10), 1) == b"in"


async def test_connections_are_broken_between_two_machines_or_all_of_one():
    machines = Machines()
    await machines.add(*"abc")
    for name in "bc":
        await machines.connect("a", name)
    machines.network.break_connections("a", "b")
    assert not machines.connected("a", "b")
    assert machines.connected("a", "c")
    machines.network.break_connections("b", "c")
    await machines.connect("b", "a")
    machines.network.break_connections("a")
    assert not machines.connected("a", "b")
    assert not machines.connected("a", "c")


# Lifecycle of a daemon


async def test_a_daemon_that_dies_resets_its_streams_and_reaches_nobody():
    machines = Machines()
    await machines.add("a", "b")
    ours, theirs = await machines.stream("a", "b")
    dead = machines.transports["a"]
    machines.network.detach("a")
    machines.network.detach("a")
    with pytest.raises(TransportError):
        await theirs.read(1)
    with pytest.raises(TransportError):
        await ours.write(b"1")
    for call in (dead.peers(), dead.connect("/sim/b/p2p/b"), dead.open_stream("b", PROTOCOL)):
        with pytest.raises(TransportError, match="dead"):
            await call
    with pytest.raises(TransportError, match="refuses"):
        await machines.connect("b", "a")
    await machines.start("a")
    await machines.connect("b", "a")
    with pytest.raises(ValueError, match="is running"):
        machines.network.attach("a", print)


async def test_a_handler_that_fails_is_told_unless_its_peer_went_away():
    machines = Machines()
    await machines.add("a", "b")
    for error in (TransportError("gone"), TimeoutError(), LookupError(), KeyError("no blob")):

        async def serve(_stream, error=error):
            raise error

        await machines.transports["b"].handle("/failing", serve)
        await machines.connect("a", "b")
        stream = await machines.transports["a"].open_stream(identity("b").peer_id, "/failing")
        assert await stream.read(1) == b""
    assert machines.errors == []

    async def fail(_stream):
        raise ZeroDivisionError

    await machines.transports["b"].handle("/failing", fail)
    await machines.transports["a"].open_stream(identity("b").peer_id, "/failing")
    await asyncio.sleep(1)
    assert [type(error) for error in machines.errors] == [ZeroDivisionError]


async def test_a_machine_s_clock_may_be_wrong():
    machines = Machines()
    await machines.add("a", skew_seconds=2.0)
    clock = machines.network.hosts["a"].clock
    await asyncio.sleep(10)
    assert clock.now() == START + 12
    machines.network.set_skew("a", -3.0)
    assert clock.now() == START + 7


async def test_while_a_transport_is_down_its_calls_fail_and_nobody_reaches_it():
    machines = Machines()
    await machines.add("ours", "theirs")
    stream, _ = await machines.stream("ours", "theirs")
    machines.network.take_down("theirs")
    assert not machines.connected("ours", "theirs")
    with pytest.raises(TransportError):
        await stream.read(1)
    transport = machines.transports["theirs"]
    for call in (transport.addresses(), transport.peers(), machines.connect("theirs", "ours")):
        with pytest.raises(TransportError, match="restarted"):
            await call
    with pytest.raises(TransportError, match="refuses"):
        await machines.connect("ours", "theirs")
    machines.network.bring_up("theirs")
    await machines.stream("ours", "theirs")
