"""Ownership of rollout bodies: stored for a commit and released with it."""

import asyncio

import pytest

from node.network.blobs.exchange import BlobExchange
from node.replication.rollout_bodies import RolloutBodies
from protocol.core.crypto import digest
from protocol.ledger.commits import CommitState
from roles.ports.storage import Owner, Purpose, StorageFullError
from tests.worlds.disks import MemoryBlobs
from tests.worlds.messages import World, found, run_manifest, set_outcome
from tests.worlds.network import Hub

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
WORKER, OTHER = WORLD.workers[:2]
EXPIRE = WORLD.manifest.committee.expire_after_epochs
KEPT = WORLD.manifest.shardcast.versions_kept
LEVEL = WORLD.manifest.grpo.async_level


class Machine:
    def __init__(self, hub=None, signer=WORKER):
        self.peer = signer.peer_id
        self.replica = WORLD.replica()
        self.blobs = MemoryBlobs()
        transport = (hub or Hub()).transport(self.peer)
        self.exchange = BlobExchange(transport, self.blobs)
        self.bodies = RolloutBodies(self.replica, self.blobs, self.exchange)
        self.epoch = 0

    def take(self, signed):
        assert self.replica.receive(signed.envelope, WORLD.at(self.epoch)).fault is None

    async def commit(self, signer, name, **changes):
        """Accept a commit to the body called ``name``, and store its body for it."""
        signed = WORLD.commit(signer, body=digest(name.encode()), **changes)
        self.take(signed)
        await self.blobs.put(name.encode(), Owner(Purpose.ROLLOUT_BODY, signed.digest))
        return signed

    def settle(self, commit, *, accepted=True):
        set_outcome(
            self.replica.ledger,
            WORLD.certificate(commit, accepted=accepted, escalated=not accepted),
            found("reason"),
        )

    def versions(self, count, *batch):
        for _ in range(count):
            parent = self.replica.ledger.chain.head
            self.take(WORLD.checkpoint(parent, batch=tuple(item.digest for item in batch)))
            batch = ()

    def seen(self):
        """Return the owners that the bodies remember."""
        return self.bodies._seen

    def has(self, name):
        return self.blobs.has(digest(name.encode()))


# Release


async def test_a_body_goes_a_while_after_it_was_learned_from():
    machine = Machine()
    commit = await machine.commit(WORKER, "a")
    machine.settle(commit)
    machine.versions(1 + LEVEL, commit)
    await machine.bodies.sweep()
    assert machine.has("a"), "a later term may learn from it again"
    machine.versions(1)
    await machine.bodies.sweep()
    assert not machine.has("a")
    await machine.bodies.sweep()
    assert machine.seen() == {}


async def test_a_body_stays_while_its_commit_is_open_or_may_be_learned_from():
    machine = Machine()
    opened = await machine.commit(WORKER, "open")
    fresh = await machine.commit(OTHER, "certified")
    machine.settle(fresh)
    machine.versions(KEPT)
    await machine.bodies.sweep()
    assert machine.has("certified")
    machine.versions(1)
    await machine.bodies.sweep()
    assert not machine.has("certified"), "nobody can learn from it any more"
    assert machine.has("open"), "its committee is still to look"
    assert machine.replica.ledger.commits.entries[opened.digest].state is CommitState.COMMITTED
    machine.epoch = EXPIRE + 1
    machine.replica.advance(WORLD.at(machine.epoch))
    await machine.bodies.sweep()
    assert not machine.has("open")


async def test_commit_that_names_anothers_body_does_not_delete_it():
    """The lying commit is settled and stale before the honest one, and its body was fetched too."""
    machine = Machine()
    machine.versions(KEPT)
    head = machine.replica.ledger.chain.head
    honest = await machine.commit(WORKER, "a", version=KEPT, checkpoint=head.digest)
    lying = await machine.commit(OTHER, "a")
    machine.settle(lying, accepted=False)
    machine.settle(honest)
    machine.versions(1)
    await machine.bodies.sweep()
    assert machine.replica.ledger.backpressure.usable()
    assert machine.has("a")
    machine.versions(KEPT)
    await machine.bodies.sweep()
    assert not machine.has("a")


async def test_commit_that_names_another_blob_does_not_delete_it():
    machine = Machine()
    weights = await machine.blobs.put(b"weights", Owner(Purpose.WEIGHTS, digest(b"index")))
    machine.take(WORLD.commit(OTHER, body=weights))
    await machine.bodies.sweep()
    machine.replica.advance(WORLD.at(EXPIRE + 1))
    machine.versions(KEPT + 1)
    for _ in range(2):
        await machine.bodies.sweep()
    assert machine.has("weights")


async def test_bodies_whose_commits_were_forgotten_go_too():
    machine = Machine()
    await machine.commit(WORKER, "a")
    await machine.bodies.sweep()
    machine.replica.advance(WORLD.at(4 * EXPIRE + 2))
    assert machine.replica.ledger.commits.entries == {}
    await machine.bodies.sweep()
    assert not machine.has("a")
    assert machine.seen() == {}


async def test_a_body_waits_for_its_commit_to_be_signed():
    """A body is durable before its commit: no ledger entry protects it then."""
    machine = Machine()
    signed = WORLD.commit(WORKER, body=digest(b"a"))
    await machine.blobs.put(b"a", Owner(Purpose.ROLLOUT_BODY, signed.digest))
    for _ in range(3):
        await machine.bodies.sweep()
    assert machine.has("a")
    machine.take(signed)
    await machine.bodies.sweep()
    assert machine.has("a")


async def test_a_restart_releases_what_was_stored_for_commits_that_were_never_signed():
    machine = Machine()
    await machine.commit(WORKER, "signed")
    await machine.blobs.put(b"unsigned", Owner(Purpose.ROLLOUT_BODY, digest(b"?")))
    again = RolloutBodies(machine.replica, machine.blobs, machine.exchange)
    await again.restore()
    assert machine.has("signed")
    assert not machine.has("unsigned")
    machine.replica.advance(WORLD.at(4 * EXPIRE + 2))
    await again.sweep()
    assert not machine.has("signed"), "its commit was forgotten before the first look"


# Fetch


async def pair():
    hub = Hub()
    ours, theirs = Machine(hub), Machine(hub, OTHER)
    hub.connect(ours.peer, theirs.peer)
    await theirs.exchange.start()
    return ours, theirs


def commit_to(body, bytes_said):
    return WORLD.commit(OTHER, body=digest(body), body_bytes=bytes_said)


async def test_a_body_is_fetched_once_and_served_on():
    ours, theirs = await pair()
    await theirs.commit(OTHER, "a body")
    small, right = commit_to(b"a body", 5), commit_to(b"a body", 6)
    ours.take(right)
    assert await ours.bodies.fetch(small, [theirs.peer]) is None, "larger than was said"
    assert await ours.bodies.fetch(right, [ours.peer, theirs.peer]) == b"a body"
    assert ours.has("a body")
    received = ours.exchange.received.total()
    assert await ours.bodies.fetch(right, []) == b"a body"
    assert await ours.bodies.fetch(small, []) is None
    assert await ours.bodies.fetch(commit_to(b"?", 9), [theirs.peer]) is None
    assert ours.exchange.received.total() == received


async def test_blob_with_another_owner_is_stored_for_the_commit_too():
    machine = Machine()
    weights = Owner(Purpose.WEIGHTS, digest(b"index"))
    await machine.blobs.put(b"bytes", weights)
    commit = commit_to(b"bytes", 5)
    machine.take(commit)
    assert await machine.bodies.fetch(commit, []) == b"bytes"
    await machine.blobs.release(weights)
    assert machine.has("bytes")
    await machine.blobs.release(Owner(Purpose.ROLLOUT_BODY, commit.digest))
    assert not machine.has("bytes")


async def test_body_of_an_unknown_commit_is_not_stored():
    ours, theirs = await pair()
    await theirs.commit(OTHER, "a body")
    assert await ours.bodies.fetch(commit_to(b"a body", 6), [theirs.peer]) == b"a body"
    assert not ours.has("a body")


async def test_a_body_that_does_not_fit_here_is_used_all_the_same():
    ours, theirs = await pair()
    await theirs.commit(OTHER, "a body")
    commit = commit_to(b"a body", 6)
    ours.take(commit)

    async def full(_data, _owner):
        await asyncio.sleep(0)
        raise StorageFullError("full")

    ours.blobs.put = full
    assert await ours.bodies.fetch(commit, [theirs.peer]) == b"a body"
