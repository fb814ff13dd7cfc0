import pytest

from node.weights.retention import WeightsRetention
from protocol.core.crypto import digest
from protocol.messages import Encoding
from protocol.run.recipe import STATES_KEPT
from roles.ports.storage import Owner, Purpose
from tests.worlds.disks import MemoryBlobs
from tests.worlds.leads import show_lead
from tests.worlds.messages import World, run_manifest

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest(trainers=2))


class Machine:
    def __init__(self):
        self.replica, self.blobs = WORLD.replica(pages_to=0), MemoryBlobs()
        self.retention = WeightsRetention(self.replica, self.blobs)
        self.head = WORLD.genesis()

    async def version(self, index, *, parent=None, **changes):
        """Store weights and state of a version with this ``index``, and publish it."""
        parent = parent or self.head
        state = digest(b"state of " + index)
        names = {"index": digest(index), "state": state}
        self.head = WORLD.checkpoint(parent, changes.get("term", 0), **names | changes)
        await self.store(index)
        assert self.replica.receive(self.head.envelope, WORLD.at(0)).fault is None

    async def store(self, index):
        await self.blobs.put(index, Owner(Purpose.WEIGHTS, digest(index)))
        state = b"state of " + index
        await self.blobs.put(state, Owner(Purpose.OPTIMISER_STATE, digest(state)))

    async def sweep(self, weights_kept, newest=None):
        version = self.replica.ledger.chain.version
        await self.retention.sweep(weights_kept, version if newest is None else newest)

    def has(self, index):
        """Return which of weights and state are here."""
        return self.blobs.has(digest(index)), self.blobs.has(digest(b"state of " + index))


async def test_weights_and_states_go_when_no_version_needs_them():
    machine = Machine()
    for version in range(1, 4):
        await machine.version(b"%d" % version)
        await machine.sweep(range(2, 99))
    assert machine.has(b"1") == (False, False)
    assert machine.has(b"2") == (True, True)
    assert machine.has(b"3") == (True, True)
    await machine.version(b"4")
    await machine.sweep(range(2, 99))
    assert machine.has(b"2") == (True, False), f"only {STATES_KEPT} states"


async def test_states_of_some_versions_are_kept_as_long_as_two_are_newer(monkeypatch):
    machine = Machine()
    rules = machine.replica.manifest.shardcast
    monkeypatch.setattr(
        machine.replica,
        "manifest",
        machine.replica.manifest.model_copy(
            update={"shardcast": rules.model_copy(update={"state_every": 3})}
        ),
    )
    for version in range(1, 9):
        published = {} if version % 3 == 0 else {"state": b""}
        await machine.version(b"%d" % version, **published)
        await machine.sweep(range(99))
    assert machine.has(b"3") == machine.has(b"6") == (True, True)
    await machine.version(b"9")
    await machine.sweep(range(99))
    assert machine.has(b"3") == (True, False)
    assert machine.has(b"6") == machine.has(b"9") == (True, True)


async def test_what_is_not_published_yet_stays_until_another_is():
    machine = Machine()
    await machine.version(b"1")
    await machine.store(b"2")
    for _ in range(3):
        await machine.sweep([1])
    assert machine.has(b"2") == (True, True)
    await machine.version(b"another 2")
    await machine.sweep([1, 2])
    assert machine.has(b"2") == (False, False)
    assert machine.has(b"another 2") == (True, True)


async def test_what_a_later_term_replaces_goes_at_once():
    machine = Machine()
    await machine.version(b"1")
    first = machine.head
    await machine.version(b"2")
    await machine.sweep([1, 2])
    show_lead(WORLD, machine.replica, 1, first)
    machine.replica.advance(WORLD.at(4))
    await machine.version(b"later 2", parent=first, term=1)
    await machine.sweep([1, 2])
    assert machine.has(b"2") == (False, False)
    assert machine.has(b"later 2") == (True, True)


async def test_what_a_restart_finds_goes_when_it_proves_to_be_old():
    machine = Machine()
    for version in range(1, 4):
        await machine.version(b"%d" % version)
    await machine.store(b"unfinished")
    machine.retention = WeightsRetention(machine.replica, machine.blobs)
    await machine.sweep([2, 3])
    assert machine.has(b"unfinished") == (True, True), "its manifest may come again"
    await machine.version(b"4")
    await machine.sweep([2, 3, 4])
    assert machine.has(b"unfinished") == machine.has(b"1") == (False, False)


async def test_what_two_versions_share_goes_with_the_later_one():
    machine = Machine()
    for _ in range(2):
        await machine.version(b"same")
    await machine.sweep([2])
    assert machine.has(b"same") == (True, True)
    await machine.version(b"3")
    await machine.version(b"4")
    await machine.sweep([3, 4])
    assert machine.has(b"same") == (False, False)


async def test_weights_are_dropped_unless_another_version_has_them_too():
    machine = Machine()
    await machine.version(b"same")
    await machine.version(b"same")
    await machine.retention.drop(machine.head.message, [1])
    assert machine.has(b"same")[0]
    await machine.retention.drop(machine.head.message, [])
    assert machine.has(b"same") == (False, True)


async def test_every_form_of_a_version_is_kept_and_goes_with_it():
    machine = Machine()
    await machine.store(b"patch")
    form = Encoding(
        base_version=0,
        base=digest(b"policy 0"),
        index=digest(b"patch"),
        index_bytes=5,
        total_bytes=5,
    )
    await machine.version(b"1", encodings=(form,))
    await machine.version(b"2")
    await machine.sweep([1, 2])
    assert machine.has(b"patch")[0]
    await machine.sweep([2])
    assert not machine.has(b"patch")[0]
    assert not machine.has(b"1")[0]


async def test_the_state_of_the_final_version_stays_for_a_return_to_it():
    machine = Machine()
    await machine.version(b"1")
    final = machine.head
    show_lead(WORLD, machine.replica, 0, final)
    machine.replica.advance(WORLD.at(4))
    for version in range(2, 6):
        await machine.version(b"%d" % version)
        await machine.sweep(range(99))
    assert [machine.has(b"%d" % one)[1] for one in range(1, 6)] == [True, False, False, True, True]


async def test_versions_that_nobody_may_use_displace_no_state():
    machine = Machine()
    for version in range(1, 6):
        await machine.version(b"%d" % version)
        await machine.sweep(range(99), newest=min(version, 2))
    assert machine.has(b"1") == machine.has(b"2") == (True, True)
