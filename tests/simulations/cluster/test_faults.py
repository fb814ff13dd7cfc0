"""Fault injection on real daemons: every planned fault takes effect, and ends on time."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from protocol.core.rng import Rng
from simulations.cluster.churn import churn_actor
from simulations.cluster.faults import chosen, fault_actor
from simulations.cluster.world import World
from simulations.runtime.loop import run_virtual
from simulations.runtime.trace import Event, Trace
from simulations.scenario.plans import NodeSelection
from simulations.scenario.scenario import Scenario, parse_scenario

BASE = """
name = "small"
description = "Eight nodes."
minutes = {minutes}

[nodes]
relay = 2
trainer = 1
validator = 2
inference = 3
start_seconds = 5
"""

Probe = Callable[[World], Coroutine[Any, Any, None]]


def small(text: str, minutes: float = 1) -> Scenario:
    return parse_scenario(BASE.format(minutes=minutes) + text)


def live(scenario: Scenario, probe: Probe, *, seed: int = 1) -> list[Event]:
    """Run a scenario with its faults and churn, and ``probe`` beside; return the events."""
    trace, events = Trace(), list[Event]()
    trace.listen(events.append)
    probed: list[bool] = []

    async def to_the_end(world: World) -> None:
        await probe(world)
        probed.append(True)

    async def run() -> None:
        actors = [fault_actor(plan, number) for number, plan in enumerate(scenario.faults)]
        actors += [churn_actor(plan, number) for number, plan in enumerate(scenario.churn)]
        await World(scenario, seed, trace).run((*actors, to_the_end))

    run_virtual(run())
    assert probed, "the probe came to its end"
    return events


def of_kind(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


async def nothing(_world: World) -> None:
    """Do nothing."""


def test_a_partition_cuts_every_way_between_its_islands_and_no_other() -> None:
    scenario = small("""
        [[faults]]
        kind = "partition"
        minute = 0.2
        seconds = 12
        islands = [0.5]
        """)

    async def probe(world: World) -> None:
        hosts = list(world.network.hosts.values())

        def cuts() -> list[tuple[str, str]]:
            return [(a.name, b.name) for a in hosts for b in hosts if world.network.cut(a, b)]

        await world.wait_until(11.9)
        assert not cuts()
        await world.wait_until(12.1)
        during = cuts()
        assert len(during) == 2 * 4 * 4, "four on each side"
        assert all((b, a) in during for a, b in during)
        await world.wait_until(24.1)
        assert not cuts()

    (fault,) = of_kind(live(scenario, probe), "fault")
    assert (fault.facts["what"], fault.facts["count"]) == ("partition", 4)


def test_a_flapping_partition_comes_and_goes() -> None:
    scenario = small("""
        [[faults]]
        kind = "flapping"
        minute = 0.2
        seconds = 20
        period_seconds = 10
        islands = [0.25]
        """)

    async def probe(world: World) -> None:
        hosts = list(world.network.hosts.values())
        seen = []
        for at in (13, 18, 23, 28, 33):
            await world.wait_until(at)
            seen.append(any(world.network.cut(a, b) for a in hosts for b in hosts))
        assert seen == [True, False, True, False, False]

    live(scenario, probe)


def test_overlapping_cuts_end_one_by_one() -> None:
    scenario = small("""
        [[faults]]
        kind = "partition"
        minute = 0.2
        seconds = 10
        islands = [0.5]

        [[faults]]
        kind = "one-way"
        minute = 0.2
        seconds = 20
        source = { names = ["worker-0"] }
        target = { names = ["trainer-0", "relay-0"] }
        """)

    async def probe(world: World) -> None:
        worker, trainer = world.network.hosts["worker-0"], world.network.hosts["trainer-0"]
        await world.wait_until(23)
        assert world.network.cut(worker, trainer)
        assert not world.network.cut(trainer, worker), "only one way"
        assert not world.network.cut(worker, world.network.hosts["relay-1"])
        await world.wait_until(33)
        assert not world.network.cut(worker, trainer)

    live(scenario, probe)


def test_machines_are_as_before_when_their_fault_is_over() -> None:
    scenario = small("""
        [[faults]]
        kind = "stall"
        minute = 0.2
        seconds = 10
        nodes = { names = ["relay-0"] }

        [[faults]]
        kind = "capacity"
        minute = 0.2
        seconds = 10
        nodes = { roles = ["inference"], share = 1.0 }
        upload_mbit = 1
        download_mbit = 2

        [[faults]]
        kind = "skew"
        minute = 0.2
        seconds = 10
        nodes = { roles = ["validator"] }
        skew_seconds = 2.5

        [[faults]]
        kind = "disk-full"
        minute = 0.2
        seconds = 10
        nodes = { names = ["worker-1"] }
        """)

    async def probe(world: World) -> None:
        def state() -> list[object]:
            machines = world.machines.values()
            return [
                (
                    machine.host.stalled,
                    machine.host.up.bytes_per_second,
                    machine.host.down.bytes_per_second,
                    machine.host.clock.skew_seconds,
                    machine.disk.quota_bytes,
                )
                for machine in machines
            ]

        await world.wait_until(11.9)
        before = state()
        await world.wait_until(12.1)
        machines, hosts = world.machines, world.network.hosts
        assert hosts["relay-0"].stalled
        assert hosts["worker-2"].up.bytes_per_second == 125_000
        assert hosts["worker-2"].down.bytes_per_second == 250_000
        skews = [hosts[f"validator-{number}"].clock.skew_seconds for number in range(2)]
        assert all(0 < abs(skew) <= 2.5 for skew in skews)
        assert skews[0] != skews[1]
        assert machines["worker-1"].disk.quota_bytes == machines["worker-1"].disk.used_bytes
        await world.wait_until(22.1)
        assert state() == before

    live(scenario, probe)


def test_a_crash_keeps_or_loses_the_state_and_the_nodes_return() -> None:
    scenario = small("""
        [[faults]]
        kind = "crash"
        minute = 0.3
        nodes = { names = ["worker-0"] }
        return_after_seconds = 10

        [[faults]]
        kind = "crash"
        minute = 0.3
        nodes = { names = ["worker-1"] }
        lose_state = true
        return_after_seconds = 10

        [[faults]]
        kind = "crash"
        minute = 0.3
        nodes = { names = ["worker-2"] }
        """)

    async def probe(world: World) -> None:
        await world.wait_until(18.1)
        kept, lost, gone = (world.machines[f"worker-{number}"] for number in range(3))
        assert kept.disk.tables
        assert not lost.disk.tables
        assert not lost.disk.files
        assert not any(machine.running for machine in (kept, lost, gone))
        await world.wait_until(28.1)
        assert kept.running
        assert lost.running
        assert not gone.running, "nobody said that it comes back"

    events = live(scenario, probe)
    downs = [(event.node, event.facts["how"]) for event in of_kind(events, "node-down")]
    assert downs == [("worker-0", "crash"), ("worker-1", "lost"), ("worker-2", "crash")]


def test_streams_or_connections_break_once() -> None:
    scenario = small("""
        [[faults]]
        kind = "break-streams"
        minute = 0.5
        nodes = { names = ["relay-0"] }

        [[faults]]
        kind = "break-streams"
        minute = 0.6
        nodes = { names = ["relay-1"] }
        connections = true
        """)

    async def probe(world: World) -> None:
        one, other = world.network.hosts["relay-0"], world.network.hosts["relay-1"]
        await world.wait_until(29.9)
        pipes = [pipe for item in one.connections.values() for pipe in item.streams]
        connected = list(one.connections)
        await world.wait_until(30.01)
        assert pipes
        assert all(pipe.broken for pipe in pipes)
        assert list(one.connections) == connected
        await world.wait_until(36.001)
        assert not other.connections
        await world.wait_until(50)
        assert other.connections, "they find each other again"

    live(scenario, probe)


def test_a_flash_crowd_joins_and_a_rolling_restart_takes_one_at_a_time() -> None:
    scenario = small("""
        [[faults]]
        kind = "flash-crowd"
        minute = 0.2
        seconds = 10
        count = 4

        [[faults]]
        kind = "rolling-restart"
        minute = 0.5
        nodes = { roles = ["validator"] }
        pause_seconds = 10
        down_seconds = 3
        """)

    async def probe(world: World) -> None:
        await world.wait_until(12.0)
        before = len(world.running)
        await world.wait_until(22.1)
        assert len(world.running) == before + 4
        await world.wait_until(55)
        members = [world.machines[name].daemon.snapshot().members for name in world.running]
        assert min(members) == 12, "everybody knows everybody"

    events = live(scenario, probe)
    downs = of_kind(events, "node-down")
    assert [event.facts["how"] for event in downs] == ["leave", "leave"]
    assert sorted(event.node for event in downs) == ["validator-0", "validator-1"]
    assert downs[1].at - downs[0].at > 5


def test_churn_takes_nodes_in_every_way_and_brings_them_back() -> None:
    scenario = small(
        """
        [[churn]]
        session = { kind = "exponential", mean_seconds = 20 }
        downtime = { kind = "weibull", shape = 0.7, scale_seconds = 5 }
        roles = ["inference", "validator"]
        lose_state_share = 0.5
        from_minute = 0.2
        until_minute = 2
        """,
        minutes=2.5,
    )

    async def probe(world: World) -> None:
        await world.wait_until(121)
        assert world.running == list(world.machines), "at the end of the plan all are back"

    events = live(scenario, probe)
    downs = of_kind(events, "node-down")
    begin = events[0].at
    assert {event.facts["how"] for event in downs} == {"crash", "lost", "leave"}
    assert {event.node.partition("-")[0] for event in downs} == {"worker", "validator"}
    assert all(12 <= event.at - begin <= 125 for event in downs)
    assert 10 <= len(downs) <= 40, "108 s of five nodes with sessions of 20 s and short downtimes"


def test_a_selection_takes_names_or_a_share_or_a_count_of_those_that_run() -> None:
    async def probe(world: World) -> None:
        await world.wait_until(6)
        rng = Rng(bytes(8))
        world.crash("worker-1")

        def drawn(**fields: object) -> list[str]:
            return chosen(world, NodeSelection.model_validate(fields), rng)

        assert drawn(names=("worker-1", "nobody")) == ["worker-1"]
        assert drawn(roles=("inference",)) == ["worker-0", "worker-2"]
        assert len(drawn(share=0.5)) == 4
        assert len(drawn(count=3, roles=("validator", "relay"))) == 3
        everyone = [drawn(count=1, roles=("validator", "relay"))[0] for _ in range(40)]
        assert len(set(everyone)) == 4, "each of them, sooner or later"

    live(small("", minutes=0.2), probe)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_fault_is_a_function_of_the_seed(seed: int) -> None:
    scenario = small(
        """
        [[faults]]
        kind = "crash"
        minute = 0.2
        nodes = { roles = ["inference", "validator"], count = 2 }
        """,
        minutes=0.3,
    )
    one, other = (live(scenario, nothing, seed=seed) for _ in range(2))
    assert [(event.at, event.node) for event in of_kind(one, "node-down")] == [
        (event.at, event.node) for event in of_kind(other, "node-down")
    ]
    assert len(of_kind(one, "node-down")) == 2
