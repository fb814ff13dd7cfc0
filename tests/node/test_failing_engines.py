"""Whole swarms in virtual time with failing engines and tasks; nodes and run continue."""

import asyncio

import pytest

from protocol.core.types import Role
from roles.ports.engines import EngineError
from simulations.ports import engines
from tests.worlds.messages import all_certified
from tests.worlds.network import eventually
from tests.worlds.swarm import Swarm

pytestmark = pytest.mark.virtual

SMALL = {"validator": 3, "inference": 2}
GONE = EngineError("OutOfMemoryError: CUDA out of memory")


class Breaker:
    """Makes methods of modelled engines fail on the machines in ``broken``."""

    def __init__(self, monkeypatch, world):
        self.broken: dict[str, None] = {}
        self._world = world
        self._patch = monkeypatch

    def arm(self, engine, method):
        honest = getattr(engine, method)
        owner_of = self._owner

        async def tried(own, *arguments):
            if owner_of(own._machine) in self.broken:
                raise GONE
            return await honest(own, *arguments)

        self._patch.setattr(engine, method, tried)

    def _owner(self, engines_of):
        machines = self._world.machines.items()
        return next(name for name, machine in machines if machine.disk is engines_of.disk)


def reason(world, name):
    return world.daemon(name).why().reason


async def test_no_node_is_ready_before_its_engine(monkeypatch):
    """A load balancer, a testnet and an operator read "ready" as "can work"."""
    world = Swarm()
    begin = asyncio.Event()

    async def start(_engine):
        await begin.wait()

    for engine in (engines.SimGeneration, engines.SimVerification, engines.SimTraining):
        monkeypatch.setattr(engine, "start", start)
    world.start_all()
    await world.reach(3, "relay-0")
    await asyncio.sleep(5)
    for name, state in (
        ("trainer-0", "syncing"),
        ("validator-0", "syncing"),
        ("relay-0", "ready"),
    ):
        assert world.daemon(name).status().state == state, name
    assert reason(world, "validator-0") == "starting the engine"
    begin.set()
    await asyncio.sleep(1)
    for name in world.running:
        assert world.daemon(name).status().state == "ready", name
    await world.finish()


async def test_training_goes_on_while_a_worker_and_a_validator_are_broken(monkeypatch):
    world = Swarm(validator=4, inference=2, committee__escalated_size=3, grpo__steps=300)
    breaker = Breaker(monkeypatch, world)
    breaker.arm(engines.SimGeneration, "generate")
    breaker.arm(engines.SimVerification, "measure")
    world.start_all()
    await world.reach(3, "relay-0")
    breaker.broken = {"worker-0": None, "validator-0": None}
    await world.more(6, "relay-0")
    for name, role in (("worker-0", "inference"), ("validator-0", "validator")):
        failed = f"{role} failed: OutOfMemoryError"  # a validator's ends with its commit
        await eventually(lambda n=name, f=failed: f in reason(world, n), 30)
    assert world.daemon("worker-0").status().state == "paused"
    breaker.broken.clear()
    await asyncio.sleep(20)
    assert world.daemon("worker-0").status().state == "ready"
    assert world.daemon("validator-0").status().state == "ready"
    await world.more(2, "relay-0")
    assert all_certified(world.ledger("relay-0"))
    await world.finish()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("end_step", marks=pytest.mark.long),
        "write_policy",
        pytest.param("load_state", marks=pytest.mark.long),
    ],
)
async def test_a_trainer_that_stays_broken_leaves_the_lead_and_can_have_it_again(
    monkeypatch, method
):
    world = Swarm(**SMALL, trainer=2, grpo__steps=300)
    breaker = Breaker(monkeypatch, world)
    for one in {"end_step", method}:
        breaker.arm(engines.SimTraining, one)
    world.start_all()
    await world.reach(3, "relay-0")
    breaker.broken["trainer-0"] = None
    await eventually(lambda: "handing over the lead" in reason(world, "trainer-0"), 60)
    heir = world.machines["trainer-1"].signer.peer_id
    await eventually(lambda: world.ledger("relay-0").chain.head.signer == heir, 60)
    assert world.ledger("relay-0").chain.head.message.term == 1
    await eventually(
        lambda: (
            Role.TRAINER
            in world.replica("relay-0")
            .roster.get(world.machines["trainer-0"].signer.peer_id)
            .record.message.roles
        ),
        60,
    )
    await world.more(3, "relay-0")
    assert world.ledger("relay-0").chain.head.signer == heir, "it is not contested"
    assert "shadow failed: OutOfMemoryError" in reason(world, "trainer-0")
    breaker.broken.clear()
    world.crash("trainer-1")
    await world.more(3, "relay-0")
    first = world.machines["trainer-0"].signer.peer_id
    assert world.ledger("relay-0").chain.head.signer == first
    await world.finish()


async def test_a_lone_trainer_goes_on_where_it_was_when_its_device_is_back(monkeypatch):
    world = Swarm(**SMALL, grpo__steps=300)
    breaker = Breaker(monkeypatch, world)
    breaker.arm(engines.SimTraining, "end_step")
    world.start_all()
    await world.reach(3, "relay-0")
    breaker.broken["trainer-0"] = None
    await asyncio.sleep(40)
    version = world.ledger("relay-0").chain.version
    assert "trainer failed: OutOfMemoryError" in reason(world, "trainer-0")
    await asyncio.sleep(20)
    assert world.ledger("relay-0").chain.version == version
    breaker.broken.clear()
    await world.more(3, "relay-0")
    terms = {entry.manifest.message.term for entry in world.ledger("relay-0").chain.checkpoints}
    assert terms == {0}
    await world.finish()


@pytest.mark.parametrize("error", [pytest.param(MemoryError, marks=pytest.mark.long), SystemExit])
async def test_a_task_that_breaks_everywhere_ends_no_node(monkeypatch, error):
    world = Swarm(**SMALL, grpo__steps=300)
    honest = engines.SumTask.score
    world.start_all()
    await world.reach(2, "relay-0")

    def broken(_task, seed, _completion):
        raise error(f"on {seed}")

    monkeypatch.setattr(engines.SumTask, "score", broken)
    told = f"failed: {error.__name__}: on"
    for name in ("validator-0", "worker-0"):
        await eventually(lambda name=name: told in reason(world, name), 60)
    assert len(world.running) == len(world.machines)
    monkeypatch.setattr(engines.SumTask, "score", honest)
    await world.more(3, "relay-0")
    await world.finish()
