from node.weights.retention import STATES_KEPT, BodyRetention, Kind, Part, WeightsRetention
from protocol.crypto import digest
from protocol.ledger.commits import CommitState
from roles.ports.storage import StorageFullError
from tests.worlds.memory_transport import run_virtual
from tests.worlds.messages import World, run_manifest
from tests.worlds.swarm_world import MemoryBlobs, MemoryStore

WORLD = World(run_manifest())
WORKER, OTHER = WORLD.workers[:2]
EXPIRE = WORLD.manifest.committee.expire_after_epochs
KEPT = WORLD.manifest.shardcast.versions_kept
LEVEL = WORLD.manifest.grpo.async_level


class Machine:
    def __init__(self):
        self.replica = WORLD.replica()
        self.blobs = MemoryBlobs()
        self.retention = BodyRetention(self.replica, self.blobs)
        self.epoch = 0

    def take(self, signed):
        assert self.replica.receive(signed.envelope, WORLD.at(self.epoch)).fault is None

    async def commit(self, signer, name, **changes):
        """Take a commit to the body called ``name``, and its body."""
        body = await self.blobs.put(name.encode())
        signed = WORLD.commit(signer, body=body, **changes)
        self.take(signed)
        return signed

    def settle(self, commit, *, accepted=True):
        self.replica.ledger.offer_certificate(
            WORLD.certificate(commit, accepted=accepted, escalated=not accepted), "reason"
        )

    def versions(self, count, *batch):
        for _ in range(count):
            parent = self.replica.ledger.head
            self.take(WORLD.checkpoint(parent, batch=tuple(item.digest for item in batch)))
            batch = ()

    def has(self, name):
        return self.blobs.has(digest(name.encode()))


def test_a_body_goes_a_while_after_it_was_learned_from():
    async def scenario():
        machine = Machine()
        commit = await machine.commit(WORKER, "a")
        machine.settle(commit)
        machine.versions(1 + LEVEL, commit)
        await machine.retention.sweep()
        assert machine.has("a"), "a later term may learn from it again"
        machine.versions(1)
        await machine.retention.sweep()
        assert not machine.has("a")
        await machine.retention.sweep()
        assert machine.retention._bodies == {}

    run_virtual(scenario())


def test_a_body_stays_while_its_commit_is_open_or_may_be_learned_from():
    async def scenario():
        machine = Machine()
        opened = await machine.commit(WORKER, "open")
        fresh = await machine.commit(OTHER, "certified")
        machine.settle(fresh)
        machine.versions(KEPT)
        await machine.retention.sweep()
        assert machine.has("certified")
        machine.versions(1)
        await machine.retention.sweep()
        assert not machine.has("certified"), "nobody can learn from it any more"
        assert machine.has("open"), "its committee is still to look"
        assert machine.replica.ledger.entries[opened.digest].state is CommitState.COMMITTED
        machine.epoch = EXPIRE + 1
        machine.replica.advance(WORLD.at(machine.epoch))
        await machine.retention.sweep()
        assert not machine.has("open")

    run_virtual(scenario())


def test_who_names_the_body_of_another_does_not_delete_it():
    """A liar's commit is settled and stale before the honest one."""

    async def scenario():
        machine = Machine()
        machine.versions(KEPT)
        head = machine.replica.ledger.head
        honest = await machine.commit(WORKER, "a", version=KEPT, checkpoint=head.digest)
        liar = await machine.commit(OTHER, "a")
        machine.settle(liar, accepted=False)
        machine.settle(honest)
        machine.versions(1)
        await machine.retention.sweep()
        assert machine.replica.ledger.usable()
        assert machine.has("a")
        machine.versions(KEPT)
        await machine.retention.sweep()
        assert not machine.has("a")

    run_virtual(scenario())


def test_bodies_whose_commits_were_forgotten_go_too():
    async def scenario():
        machine = Machine()
        await machine.commit(WORKER, "a")
        machine.retention.note()
        machine.replica.advance(WORLD.at(4 * EXPIRE + 2))
        assert machine.replica.ledger.entries == {}
        await machine.retention.sweep()
        assert not machine.has("a")
        assert machine.retention._done_with == {}

    run_virtual(scenario())


# Weights


class Full(MemoryStore):
    full = False

    async def commit(self, changes):
        if self.full:
            raise StorageFullError("full")
        await super().commit(changes)


def test_notes_survive_a_restart_and_are_written_once():
    async def scenario():
        store = Full()
        retention = WeightsRetention(WORLD.replica(), store, MemoryBlobs())
        for _ in range(2):
            await retention.note(Kind.INDEX, 3, digest(b"i"))
        await retention.note(Kind.STATE, 3, digest(b"s"))
        again = WeightsRetention(WORLD.replica(), store, MemoryBlobs())
        again.restore()
        assert list(again._parts) == [
            Part(Kind.INDEX, 3, digest(b"i")),
            Part(Kind.STATE, 3, digest(b"s")),
        ]

    run_virtual(scenario())


def test_what_is_not_published_yet_stays():
    async def scenario():
        replica, blobs = WORLD.replica(), MemoryBlobs()
        retention = WeightsRetention(replica, Full(), blobs)
        state = await blobs.put(b"state")
        await retention.note(Kind.STATE, 1, state)
        await retention.sweep({})
        assert blobs.has(state)
        replica.receive(WORLD.checkpoint(WORLD.genesis()).envelope, WORLD.at(0))
        await retention.sweep({})
        assert not blobs.has(state), "another one was published as this version"

    run_virtual(scenario())


def test_a_state_of_two_versions_goes_with_the_later_one():
    async def scenario():
        replica, blobs = WORLD.replica(), MemoryBlobs()
        retention = WeightsRetention(replica, Full(), blobs)
        state = await blobs.put(b"state")
        head = WORLD.genesis()
        for version in (1, 2):
            head = WORLD.checkpoint(head, state=state)
            replica.receive(head.envelope, WORLD.at(0))
            await retention.note(Kind.STATE, version, state)
        for _ in range(STATES_KEPT - 1):
            head = WORLD.checkpoint(head)
            replica.receive(head.envelope, WORLD.at(0))
        await retention.sweep({})
        assert blobs.has(state)
        head = WORLD.checkpoint(head)
        replica.receive(head.envelope, WORLD.at(0))
        await retention.sweep({})
        assert not blobs.has(state)

    run_virtual(scenario())


def test_a_note_that_cannot_be_deleted_is_deleted_later():
    async def scenario():
        replica, store = WORLD.replica(), Full()
        retention = WeightsRetention(replica, store, MemoryBlobs())
        await retention.note(Kind.INDEX, 0, digest(b"i"))
        store.full = True
        await retention.sweep({})
        assert retention._parts
        store.full = False
        await retention.sweep({})
        assert retention._parts == {}
        assert store.tables["weights"] == {}

    run_virtual(scenario())
