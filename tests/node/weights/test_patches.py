"""Versions transferred as patches: to all nodes, to late nodes, and from lying trainers."""

import asyncio

import numpy as np
import pytest

from node.storage.encodings import DecodingFile, encode
from node.weights import publish
from protocol.core.crypto import digest
from protocol.core.types import Version
from protocol.messages import Encoding
from roles.ports.engines import Policy
from roles.ports.storage import Owner, Purpose, StorageFullError
from tests.node.weights import test_library as world
from tests.worlds.network import eventually
from tests.worlds.tensor_files import file_of, policy_of

pytestmark = pytest.mark.virtual

ELEMENTS = 20_000


def tensors(version):
    """Return weights of which one in a hundred moves by one place with each version."""
    rng = np.random.default_rng(1)
    words = rng.integers(0x3A00, 0x3D00, ELEMENTS, dtype=np.uint16)
    for _ in range(version):
        words += (rng.random(ELEMENTS) < 0.01).astype(np.uint16)
    return {"a": words[:5000], "b": words[5000:].reshape(100, 150)}


def weights(version):
    return file_of(tensors(version))


class Swarm(world.Swarm):
    """Trainer and followers whose weights are files of tensors."""

    @staticmethod
    def first_policy():
        return policy_of(tensors(0))

    async def publish(self, **changes):
        version = 0 if self.head is None else self.head.message.version + 1
        made = {"content": weights(version), "policy": policy_of(tensors(version))}
        return await super().publish(**made | changes)

    async def step(self, *nodes, **changes):
        """Publish a version, and wait until these nodes, or all, have it."""
        signed = await self.publish(**changes)
        self.tell(signed)
        self.introduce()
        for node in nodes or self.nodes:
            await arrives(node, signed.message.version)
        self.introduce()
        return signed


def has(node, version):
    policy = node.library.get(version)
    return policy is not None and policy.path.read_bytes() == weights(version)


async def arrives(node, version, seconds=60):
    await eventually(lambda: has(node, version), seconds)


async def begun(tmp_path, versions, **options):
    swarm = Swarm(tmp_path, **options)
    await swarm.start()
    for _ in range(versions):
        await swarm.step()
    return swarm


async def away(node):
    node.running.cancel()
    await asyncio.wait([node.running])


def received(node):
    return node.exchange.received.total()


async def test_a_new_version_costs_its_patch(tmp_path):
    swarm = await begun(tmp_path, 1)
    before = [received(node) for node in swarm.followers]
    for version in range(1, 4):
        signed = await swarm.step()
        (encoding,) = signed.message.encodings
        assert (encoding.base_version, encoding.base) == (
            version - 1,
            policy_of(tensors(version - 1)),
        )
        assert encoding.total_bytes < len(weights(0)) / 50
    for node, count in zip(swarm.followers, before, strict=True):
        assert received(node) - count < len(weights(0)) / 10
        assert 3.5 * len(weights(0)) > node.library.saved_bytes > 2.9 * len(weights(0))
    await swarm.stop()


def encodings(node):
    return sorted(file.name for file in node.directory.rglob("*.encoding"))


async def test_the_patch_that_made_a_version_is_kept_for_engines_as_long_as_it(tmp_path):
    swarm = await begun(tmp_path, 3)
    for node in swarm.nodes:
        assert node.library.get(0).patch is None
        for version in (1, 2):
            patch = node.library.get(version).patch
            assert patch.base == policy_of(tensors(version - 1))
            assert patch.digest == digest(patch.path.read_bytes())
            base, target = node.library.get(version - 1), tmp_path / "decoded"
            decoding = DecodingFile(base, target, 1 << 20)
            decoding.feed(patch.path.read_bytes())
            assert decoding.finish() == policy_of(tensors(version))
            decoding.close()
        assert encodings(node) == ["v1.encoding", "v2.encoding"]
    for _ in range(6):
        await swarm.step()
    kept = swarm.world.manifest.shardcast.versions_kept
    for node in swarm.nodes:
        await eventually(lambda node=node: len(encodings(node)) == kept, 60)
        assert encodings(node)[-1] == "v8.encoding"
    one = swarm.followers[0]
    await one.restart()
    assert one.library.newest().patch is None  # engines get no patch then
    await swarm.stop()


async def test_a_version_is_here_without_its_patch_when_that_has_no_room(tmp_path):
    swarm = await begun(tmp_path, 1)
    one = swarm.followers[0]

    async def refuse(*_):
        raise StorageFullError("no room")

    one.ports.files.link = refuse
    await swarm.step()
    assert one.library.get(1).patch is None
    assert str(one.conditions) == ""
    await swarm.stop()


def test_a_version_that_is_released_again_leaves_its_published_patch_as_it_was(tmp_path):
    """The file has a second link in the store: writing into it would change the served bytes."""
    base, new, other = (tmp_path / name for name in ("base", "new", "other"))
    for path, version in ((base, 0), (new, 1), (other, 5)):
        path.write_bytes(weights(version))
    target, published = tmp_path / "v1.encoding", tmp_path / "published"
    policy = Policy(Version(0), policy_of(tensors(0)), base)
    made = encode(new, policy, target)
    published.hardlink_to(target)
    assert encode(other, policy, target) != made
    assert digest(published.read_bytes()) == made


async def test_the_first_version_travels_as_byte_planes(tmp_path):
    swarm = await begun(tmp_path, 1)
    (encoding,) = swarm.head.message.encodings
    assert (encoding.base_version, encoding.base) == (-1, b"")
    for node in swarm.followers:
        assert received(node) < encoding.total_bytes * 1.2 < len(weights(0))
    await swarm.stop()


async def test_a_new_node_takes_the_last_file_from_anybody_and_the_patches_since(tmp_path):
    """Its trainer no longer sends; nodes that patched up to version 5 have the file."""
    swarm = await begun(tmp_path, 1, followers=3)
    late = swarm.followers[2]
    await away(late)
    for _ in range(1, 8):
        await swarm.step(*swarm.trainers, *swarm.followers[:2])
    late.disk.wipe()
    for file in late.directory.glob("*.safetensors"):
        file.unlink()
    trainer = swarm.trainers[0]
    sent = trainer.exchange.sent.total()
    swarm.hub.remove(trainer.identity.peer_id)
    await late.restart()
    for _ in range(20):  # until its record has expired
        swarm.introduce()
        await asyncio.sleep(10)
    await arrives(late, 7)
    assert trainer.exchange.sent.total() == sent
    await eventually(lambda: has(late, 6), 60)  # it is wanted for its own sake
    await swarm.stop()


async def test_late_node_fetches_missed_patches_in_order(tmp_path):
    swarm = await begun(tmp_path, 2)
    late = swarm.followers[0]
    await away(late)
    for _ in range(2):
        await swarm.step(*swarm.trainers, swarm.followers[1])
    count = received(late)
    await late.restart()
    await arrives(late, 3)
    assert received(late) - count < len(weights(0)) / 10
    await swarm.stop()


async def test_the_base_of_a_patch_on_its_way_stays_while_a_newer_version_is_fetched(tmp_path):
    """It was deleted with old versions, and the new node's read of it failed."""
    swarm = await begun(tmp_path, 2, versions_kept=3)
    late, others = swarm.followers[0], [*swarm.trainers, *swarm.followers[1:]]
    await away(late)
    patched = await swarm.step(*others)
    for node in others:
        held = [patched.message.encodings[0].index]
        node.blobs.withheld.update(dict.fromkeys(held))
    await swarm.step(*others)
    await late.restart()
    (patch,) = patched.message.encodings
    await eventually(lambda: patch.index in late.downloads.begun, 60)
    await swarm.step(*others, late, encodings=())
    assert patch.index not in late.downloads.cancelled
    replica = late.replica
    assert replica.ledger.chain.version - replica.manifest.grpo.async_level > 1, (
        "no rollout may use it"
    )
    assert has(late, 1)
    await swarm.stop()


async def published(node, content):
    """Store an encoding at a trainer; return its manifest entry."""
    path = node.directory / "made"
    path.write_bytes(content)
    stored = await node.blobs.put_file(path, 8192, 2048, Purpose.WEIGHTS)
    path.unlink()
    return {
        "index": stored.digest,
        "index_bytes": stored.index_bytes,
        "total_bytes": stored.total_bytes,
    }


async def lie_of(swarm, kind, tmp_path):
    """Return the patch of version 2 against version 1 that a lying trainer signs."""
    trainer = swarm.trainers[0]
    files, target = trainer.ports.files, tmp_path / "lie"
    base = trainer.library.get(1)
    other = tmp_path / "other"
    other.write_bytes(weights(9))
    await files.encode(other, base, target)
    honest = target.read_bytes()
    content = {
        "another policy": honest,
        "noise": bytes(5000),
        "cut off": honest[:-20],
        "longer": honest + b"more",
    }[kind]
    return Encoding(base_version=1, base=policy_of(tensors(1)), **await published(trainer, content))


@pytest.mark.parametrize("kind", ["another policy", "noise", "cut off", "longer"])
async def test_a_patch_that_is_a_lie_is_given_up_for_the_file(tmp_path, kind):
    swarm = await begun(tmp_path, 2)
    lie = await lie_of(swarm, kind, tmp_path)
    signed = await swarm.step(encodings=(lie,))
    for node in swarm.followers:
        assert list(node.downloads.begun)[-2:] == [lie.index, signed.message.index]
        assert str(node.conditions) == ""
    await swarm.step()
    await swarm.stop()


async def test_a_patch_whose_index_is_nonsense_is_given_up_for_the_file(tmp_path):
    swarm = await begun(tmp_path, 2)
    data = b"no index"
    owner = Owner(Purpose.WEIGHTS, digest(data))
    await swarm.trainers[0].blobs.put(data, owner)
    lie = Encoding(
        base_version=1,
        base=policy_of(tensors(1)),
        index=digest(data),
        index_bytes=len(data),
        total_bytes=5,
    )
    await swarm.step(encodings=(lie,))
    await swarm.stop()


async def test_a_patch_that_an_engine_refuses_is_tried_again_as_a_file(tmp_path):
    """The base may have been damaged on the disk after its check."""
    swarm = await begun(tmp_path, 2)
    one = swarm.followers[0]
    for _ in range(2):
        await one.library.discard(one.library.get(1))
        await arrives(one, 1)
    assert received(one) > len(weights(1))
    await swarm.stop()


async def test_a_base_that_rotted_is_found_when_a_patch_meets_it(tmp_path):
    swarm = await begun(tmp_path, 2)
    one = swarm.followers[0]
    path = one.library.get(1).path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    await swarm.step()
    assert has(one, 2)
    await swarm.stop()


async def test_a_full_disk_while_decoding_is_waited_out(tmp_path, monkeypatch):
    swarm = await begun(tmp_path, 2)
    one = swarm.followers[0]
    decode, full = one.ports.files.decode, [True]

    async def refuse(encoding, *arguments):
        if full:
            await anext(encoding)
            raise StorageFullError("no room")
        return await decode(encoding, *arguments)

    one.ports.files.decode = refuse
    signed = await swarm.publish()
    swarm.tell(signed)
    await eventually(lambda: "not stored" in str(one.conditions), 30)
    full.clear()
    await arrives(one, 2)
    assert "not stored" not in str(one.conditions)
    await swarm.stop()


async def test_a_full_disk_keeps_a_version_and_offers_it_to_nobody(tmp_path):
    swarm = await begun(tmp_path, 5)
    one = swarm.followers[0]

    async def refuse(*_):
        raise StorageFullError("no room")

    one.blobs.put_file = refuse
    signed = await swarm.step()
    await asyncio.sleep(1)
    assert signed.message.version == 5
    assert not one.blobs.has(signed.message.index)
    assert swarm.followers[1].blobs.has(signed.message.index)
    await swarm.step()
    await swarm.stop()


async def test_partial_file_of_a_killed_process_is_removed(tmp_path):
    swarm = await begun(tmp_path, 1)
    one = swarm.followers[0]
    names = ("v7.safetensors.partial", "v7.encoding")
    for name in names:
        (one.directory / name).write_bytes(b"half")
    kind = type(one.ports.files)
    kind(one.directory, one.directory / "genesis", one.directory / "task", one.blobs)
    assert not any((one.directory / name).exists() for name in names)
    assert has(one, 0)
    await swarm.stop()


async def test_a_version_that_is_no_file_of_tensors_travels_as_it_is(tmp_path):
    swarm = await world.begun(tmp_path, 2)
    assert swarm.head.message.encodings == ()
    await swarm.stop()


async def test_an_encoding_that_does_not_pay_is_not_published(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "ENCODING_PAYS", 0.001)
    swarm = await begun(tmp_path, 2)
    assert swarm.head.message.encodings == ()
    await swarm.stop()
