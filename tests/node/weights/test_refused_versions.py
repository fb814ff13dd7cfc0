"""Poisoned versions: every node refuses them once, and follows the next trainer."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from structlog.testing import capture_logs

from node.weights.refused_versions import REFUSED_MAX, RefusedVersions
from protocol.core.types import Version
from protocol.messages import Encoding
from protocol.replica.shadows import Comparison
from protocol.run.outer_bound import version_bound
from protocol.run.sections import OuterSection
from protocol.run.training_bound import movement_bound
from protocol.shardcast.movement_bound import ExcessiveMovement
from roles.ports.engines import Policy
from roles.ports.storage import Purpose, StorageFullError
from tests.node.weights.test_patches import Swarm, arrives, away, begun, has, received, tensors
from tests.worlds.disks import MemoryStore
from tests.worlds.network import eventually
from tests.worlds.tensor_files import file_of, policy_of

pytestmark = pytest.mark.virtual

POISON = 0x4000
"""2.0: farther from every weight than a hundred versions may move it."""


def poisoned(version, places=1):
    """Return tensors of a version of which some weights are changed."""
    made = {name: words.copy() for name, words in tensors(version).items()}
    made["b"].reshape(-1)[5 : 5 + places] = POISON
    return made


def content_of(made):
    return {"content": file_of(made), "policy": policy_of(made)}


async def refusing(swarm, signed):
    """Wait until all followers refuse a version, and for a while longer."""
    reason = f"version {signed.message.version} is refused"
    await eventually(lambda: all(reason in str(one.conditions) for one in swarm.followers), 60)
    for _ in range(3):
        await asyncio.sleep(10)
        swarm.introduce()
    for node in swarm.followers:
        assert node.library.get(signed.message.version) is None
        assert node.library.newest_version() == signed.message.version - 1
        assert not node.blobs.has_file(signed.message.index)
        assert not any(node.blobs.has(one.index) for one in signed.message.encodings)
        assert not node.ports.files.weights(signed.message.version).exists()
        assert not list(node.directory.glob("*.partial"))


async def test_a_poisoned_patch_is_refused_by_everybody_for_its_own_bytes(tmp_path):
    swarm = await begun(tmp_path, 3)
    before = [received(node) for node in swarm.followers]
    signed = await swarm.publish(**content_of(poisoned(3)))
    (patch,) = signed.message.encodings
    with capture_logs() as logs:
        swarm.tell(signed)
        await refusing(swarm, signed)
    for node, count in zip(swarm.followers, before, strict=True):
        assert received(node) - count < 1.2 * patch.total_bytes + 1000
        assert list(node.downloads.begun)[-1] == patch.index
        assert "a weight of b moves" in str(node.conditions)
    refused = [one for one in logs if one["event"] == "version_refused"]
    assert len(refused) == len(swarm.followers)
    assert {(one["version"], one["tensor"]) for one in refused} == {(3, "b")}
    assert min(one["ratio"] for one in refused) > 100
    await swarm.stop()


@pytest.mark.parametrize("kind", ["no patch", "lying patch", "other header"])
async def test_a_poisoned_file_is_refused_too(tmp_path, kind):
    """Its patch is missing, or a lie, or its tensors are in another order."""
    swarm = await begun(tmp_path, 3)
    made = poisoned(3)
    if kind == "other header":
        made = dict(reversed(made.items()))
    changes = {"encodings": ()}
    if kind == "lying patch":
        changes = {"encodings": (await published(swarm, tensors(9), tensors(2), 2),)}
    signed = await swarm.publish(**content_of(made), **changes)
    swarm.tell(signed)
    await refusing(swarm, signed)
    count = [received(node) for node in swarm.followers]
    await asyncio.sleep(60)
    assert count == [received(node) for node in swarm.followers], "not fetched again"
    await swarm.stop()


async def test_a_file_without_the_tensors_of_the_version_before_is_refused(tmp_path):
    swarm = await begun(tmp_path, 3)
    content = b"no file of tensors" * 2000
    signed = await swarm.publish(content=content, policy=policy_of(tensors(3)))
    swarm.tell(signed)
    await refusing(swarm, signed)
    assert "does not hold the tensors" in str(swarm.followers[0].conditions)
    await swarm.stop()


def nudged(swarm, version, bound=movement_bound):
    """Return tensors of a version with a weight that has moved 1.5 times as far as it may."""
    made = {name: words.copy() for name, words in tensors(version).items()}
    words = made["b"].reshape(-1)
    place = int((words < 0x3A80).argmax())
    value = (words[place : place + 1].astype("<u4") << 16).view("<f4")
    value += 1.5 * bound(swarm.world.manifest.grpo, 1).step
    words[place] = value.view("<u4")[0] >> 16
    return made


async def published(swarm, new, against, claimed):
    """Return a patch of the trainer from one file to another, that claims a version as its base."""
    trainer, path = swarm.trainers[0], swarm.directory / "patch"
    paths = [swarm.directory / name for name in ("made", "against")]
    for file, made in zip(paths, (new, against), strict=True):
        file.write_bytes(file_of(made))
    base = Policy(Version(claimed), policy_of(tensors(claimed)), paths[1])
    await trainer.ports.files.encode(paths[0], base, path)
    stored = await trainer.blobs.put_file(path, 8192, 2048, Purpose.WEIGHTS)
    return Encoding(
        base_version=claimed,
        base=base.digest,
        index=stored.digest,
        index_bytes=stored.index_bytes,
        total_bytes=stored.total_bytes,
    )


async def test_an_older_base_does_not_widen_the_bound(tmp_path):
    """A weight may move twice as far over two versions, but this trainer made one."""
    swarm = await begun(tmp_path, 3)
    made = nudged(swarm, 3)
    old = await published(swarm, made, tensors(1), 1)
    signed = await swarm.publish(**content_of(made), encodings=(old,))
    swarm.tell(signed)
    await refusing(swarm, signed)
    for node in swarm.followers:
        assert signed.message.index not in node.downloads.begun
    await swarm.stop()


def bound_of_outer_steps(grpo, versions):
    rule = OuterSection(trainers=2, learning_rate=2.0, momentum=0.9)
    return version_bound(grpo.model_copy(update={"outer": rule}), versions)


async def test_a_run_with_outer_steps_has_their_bound(tmp_path, monkeypatch):
    """A weight may move 40 times as far as two steps of AdamW move it."""
    monkeypatch.setattr("node.weights.library.version_bound", bound_of_outer_steps)
    swarm = await begun(tmp_path, 3)
    signed = await swarm.publish(**content_of(nudged(swarm, 3)))
    swarm.tell(signed)
    await eventually(lambda: all(one.library.get(3) for one in swarm.followers), 60)
    made = nudged(swarm, 4, bound_of_outer_steps)
    made["b"].reshape(-1)[:] = np.maximum(made["b"].reshape(-1), nudged(swarm, 3)["b"].reshape(-1))
    signed = await swarm.publish(**content_of(made))
    swarm.tell(signed)
    await refusing(swarm, signed)
    await swarm.stop()


async def test_a_version_that_follows_a_refused_one_is_refused_with_it(tmp_path):
    """It arrived first, and two versions may move a weight so far."""
    swarm = await begun(tmp_path, 3)
    both = [
        await swarm.publish(**content_of(nudged(swarm, version)), encodings=())
        for version in (3, 4)
    ]
    withheld = swarm.trainers[0].blobs.withheld
    withheld[both[0].message.index] = None
    for node in swarm.nodes:
        for signed in both:
            node.take(signed)
    await eventually(lambda: all(one.library.get(4) for one in swarm.followers), 60)
    withheld.clear()
    await refusing(swarm, both[0])
    for node in swarm.followers:
        assert node.library.get(4) is None
        assert node.held == [0, 1, 2]
    await swarm.stop()


async def test_a_refusal_survives_a_restart(tmp_path):
    swarm = await begun(tmp_path, 3)
    one = swarm.followers[0]
    signed = await swarm.publish(**content_of(poisoned(3)))
    swarm.tell(signed)
    await refusing(swarm, signed)
    count = received(one)
    one.running.cancel()
    await asyncio.wait([one.running])
    await one.restart_alone()
    swarm.introduce()
    await refusing(swarm, signed)
    assert received(one) == count
    assert one.downloads.begun == {}
    await swarm.stop()


async def test_the_next_trainer_continues_from_the_version_before(tmp_path):
    """Versions that follow a refused one are not fetched, and cost no older version its place."""
    swarm = await begun(tmp_path, 3, trainers=2)
    last = swarm.head
    refused = await swarm.publish(**content_of(poisoned(3)))
    swarm.tell(refused)
    await refusing(swarm, refused)
    for version in range(4, 9):
        swarm.tell(await swarm.publish(**content_of(poisoned(version))))
        await asyncio.sleep(12)
        swarm.introduce()
    for node in swarm.followers:
        assert node.held == [0, 1, 2]
        assert node.library.newest_version() == 2
        assert node.library.published_state(8).message.version == 2
    heir = swarm.trainers[1]
    assert has(heir, 2)
    swarm.introduce(swarm.trainers[0], leaving=True)
    swarm.lead(1, last)
    signed = await swarm.publish(trainer=1, parent=last, term=1, **content_of(tensors(3)))
    swarm.tell(signed)
    others = [*swarm.followers, heir]
    for node in others:
        await arrives(node, 3)
        assert node.library.newest_version() == 3
    await asyncio.sleep(20)
    assert all(str(node.conditions) == "" for node in others)
    await swarm.stop()


async def test_versions_that_nobody_can_hold_delete_no_older_one(tmp_path):
    """Their trainer announces many before the first one has arrived, and has no patches."""
    swarm = await begun(tmp_path, 3)
    announced = [
        await swarm.publish(**content_of(tensors(version)), encodings=()) for version in range(3, 9)
    ]
    swarm.hub.remove(swarm.trainers[0].identity.peer_id)
    for node in swarm.followers:
        for signed in announced:
            node.take(signed)
    for _ in range(5):
        await asyncio.sleep(20)
        swarm.introduce()
    for node in swarm.followers:
        assert node.held == [0, 1, 2]
        assert has(node, 2)
    await swarm.stop()


async def test_a_state_of_a_refused_version_is_neither_fetched_nor_offered(tmp_path):
    swarm = await begun(tmp_path, 3, trainers=2)
    heir = swarm.trainers[1]
    await eventually(lambda: heir.blobs.has_file(swarm.head.message.state), 60)
    refused = await swarm.publish(**content_of(poisoned(3)), state_content=b"poison")
    swarm.tell(refused)
    await refusing(swarm, refused)
    assert not heir.blobs.has_file(refused.message.state)
    assert heir.library.published_state(3).message.version == 2
    await swarm.stop()


async def test_a_version_is_not_refused_for_a_damaged_base(tmp_path):
    """Of all nodes only this one has it; the older version on its disk is compared instead."""
    swarm = await begun(tmp_path, 3)
    one = swarm.followers[0]
    path = one.library.get(2).path
    damaged = file_of(poisoned(2, places=400))
    path.write_bytes(damaged)
    signed = await swarm.step(encodings=())
    assert has(one, signed.message.version)
    assert str(one.conditions) == ""
    path = one.library.get(3).path
    path.write_bytes(file_of(poisoned(3, places=400)))
    signed = await swarm.step()
    assert has(one, signed.message.version), "its patch failed, and its file was compared"
    assert str(one.conditions) == ""
    await swarm.stop()


async def test_a_patch_that_does_not_need_its_damaged_base_is_no_refusal(tmp_path):
    """Blocks in full decode to the signed tensors on any base, and seem to move all weights."""
    swarm = await begun(tmp_path, 3)
    one = swarm.followers[0]
    noise = {
        name: np.random.default_rng(2).integers(0, 2**16, words.shape, np.uint16)
        for name, words in tensors(3).items()
    }
    patch = await published(swarm, tensors(3), noise, 2)
    one.library.get(2).path.write_bytes(file_of(poisoned(2, places=400)))
    signed = await swarm.step(encodings=(patch,))
    assert all(str(node.conditions) == "" for node in swarm.followers)
    assert list(one.downloads.begun)[-2:] == [patch.index, signed.message.index]
    assert list(swarm.followers[1].downloads.begun)[-1] == patch.index
    await swarm.stop()


async def test_a_node_that_was_away_compares_with_the_newest_version_that_it_holds(tmp_path):
    swarm = await begun(tmp_path, 2)
    late = swarm.followers[0]
    others = [node for node in swarm.nodes if node is not late]
    await away(late)
    for _ in range(6):
        await swarm.step(*others)
    await late.restart()
    await arrives(late, 7)
    assert str(late.conditions) == ""
    await swarm.stop()


async def test_a_full_disk_forgets_a_refusal_at_a_restart_only(tmp_path):
    swarm = await begun(tmp_path, 3)
    one = swarm.followers[0]
    commit = one.store.commit

    async def refuse(changes):
        if any(change.table == "refused_versions" for change in changes):
            raise StorageFullError("no room")
        await commit(changes)

    one.store.commit = refuse
    signed = await swarm.publish(**content_of(poisoned(3)))
    swarm.tell(signed)
    await refusing(swarm, signed)
    await swarm.stop()


class Chain:
    """A chain of which every manifest is a member."""

    version = 10**6
    final = -1

    def __init__(self):
        self.members = {}

    def place(self, digest):
        return self.members.get(digest)

    def get(self, version):
        return next((one for one in self.made if one.message.version == version), None)


async def test_the_newest_refusals_are_remembered_and_no_more(tmp_path):
    swarm = Swarm(tmp_path)
    chain, store = Chain(), MemoryStore()
    shadows = SimpleNamespace(dispute=lambda _final: None)
    replica = SimpleNamespace(ledger=SimpleNamespace(chain=chain), shadows=shadows)
    refused = RefusedVersions(store, replica)
    head, chain.made = None, []
    for version in range(REFUSED_MAX + 3):
        head = swarm.world.checkpoint(head)
        chain.made.append(head)
        chain.members[head.digest] = version
        await refused.add(head, ExcessiveMovement("x" * 10_000, 2.0))
    for one in (refused, RefusedVersions(store, replica)):
        one.restore()
        assert one.first() == 3
        assert one.newest_usable() == 2
        assert (one.has(2), one.has(3), one.has(99)) == (False, True, True)
        assert one.reason.startswith("version 3 is refused: a weight of xxx")
        assert len(one.reason) < 1000
    assert len(list(store.scan("refused_versions"))) == REFUSED_MAX
    chain.members.clear()
    assert refused.first() is None
    assert refused.reason == ""
    assert refused.newest_usable() == chain.version


async def test_a_disputed_version_is_not_used_as_long_as_trainers_dispute_it(tmp_path):
    """The version stays on the disk: a later report may confirm it."""
    swarm = await begun(tmp_path, 3)
    signed = await swarm.publish(**content_of(tensors(3)))
    swarm.tell(signed)
    node = swarm.followers[0]
    await eventually(lambda: node.library.newest_version() == 3, 60)
    path = node.library.get(3).path
    comparison = Comparison(signed, 1, {b"other": 2})
    node.replica.shadows.dispute = lambda final: comparison if final < 3 else None
    assert node.library.newest_version() == 2
    assert node.library.get(3) is None
    node.library.news.notify()
    await eventually(lambda: "2 trainers computed another policy" in str(node.conditions), 60)
    assert path.exists()
    node.replica.shadows.dispute = lambda _final: None
    assert node.library.newest_version() == 3
    await swarm.stop()
