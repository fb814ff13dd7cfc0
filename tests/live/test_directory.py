import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from hivemind.dht import DHTID, DHTNode
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer

from node.live import control
from node.live.hivemind_dht import HivemindDirectory
from node.live.hivemind_p2p import HivemindTransport
from node.live.records import BoundedStorage, RecordValidator, node_id
from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.core.types import RunId
from protocol.membership.directory_buckets import MEMBERS_PER_BUCKET, BucketReader, Buckets
from tests.live.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.live, pytest.mark.asyncio(loop_scope="module")]

RUN = RunId(b"\x11" * 32)


class Anywhere(Buckets):
    """Eight buckets open to every key, so that a test can have a few nodes in one."""

    def may_list(self, key, peer):
        del key, peer
        return True


BUCKETS = Anywhere(RUN)
KEYS = [BUCKETS.key(3, number) for number in range(8)]


class Node:
    def __init__(self, identity: Identity, transport: HivemindTransport) -> None:
        self.identity = identity
        self.transport = transport
        self.directory: HivemindDirectory
        self.blamed: list[tuple[str, str]] = []

    def blame(self, peer, fault) -> None:
        self.blamed.append((peer, str(fault.code)))

    @property
    def id(self):
        return self.identity.peer_id

    @property
    def dht(self):
        """The protocol of its DHT node, whose calls an attacker can make with any argument."""
        return self.directory._node.protocol

    async def address(self) -> str:
        return (await self.transport.addresses())[0]

    async def close(self) -> None:
        if hasattr(self, "directory"):
            await self.directory.close()
            await self.directory.close()
        await self.transport.close()


async def start(directory: Path, seed: int, *, with_directory: bool = True) -> Node:
    identity = Identity(bytes([seed]) * 32)
    path = directory / f"{seed}.key"
    path.write_bytes(identity.to_protobuf())
    node = Node(identity, await HivemindTransport.create(identity, path))
    if with_directory:
        node.directory = await HivemindDirectory.create(
            node.transport, identity, RUN, BUCKETS, blame=node.blame
        )
    return node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory):
    return tmp_path_factory.mktemp("keys")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trio(keys):
    """Chain of three nodes; the last one has the address of the middle one only."""
    nodes = await asyncio.gather(*(start(keys, seed) for seed in (21, 22, 23)))
    first, middle, last = nodes
    await joins(middle, [await first.address()])
    await joins(last, [await middle.address()])
    yield nodes
    await asyncio.gather(*(node.close() for node in nodes))


async def joins(node: Node, addresses) -> None:
    """Bootstrap until all answer: on a slow machine one answer may exceed the timeout."""

    async def all_answered() -> bool:
        return await node.directory.bootstrap(addresses) == len(addresses)

    await eventually(all_answered)


async def publishes(node: Node, key: str, value: bytes) -> None:
    await eventually(lambda: node.directory.publish(key, value, time.time() + 600))


async def sees(node: Node, key: str, expected) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await node.directory.lookup(key) != expected:  # noqa: ASYNC110 - others cause it
            await asyncio.sleep(0.05)


async def test_what_one_publishes_all_find(trio):
    for index, node in enumerate(trio):
        await publishes(node, KEYS[0], bytes([index]))
    expected = {node.id: bytes([index]) for index, node in enumerate(trio)}
    for node in trio:
        await sees(node, KEYS[0], expected)
        assert node.directory.neighbours == 2


async def test_a_newer_record_replaces_an_older_one_and_not_the_reverse(trio):
    first, _, last = trio
    now = time.time()
    assert await first.directory.publish(KEYS[1], b"new", now + 60)
    assert not await first.directory.publish(KEYS[1], b"old", now + 30)
    await sees(last, KEYS[1], {first.id: b"new"})


async def test_an_expired_record_is_gone(trio):
    first, _, last = trio
    assert await first.directory.publish(KEYS[2], b"short", time.time() + 1)
    await sees(last, KEYS[2], {first.id: b"short"})
    await asyncio.sleep(1.1)
    assert await last.directory.lookup(KEYS[2]) == {}


async def test_what_breaks_a_rule_is_published_nowhere(trio):
    first, _, last = trio
    assert not await first.directory.publish(KEYS[3], b"x", time.time() + 4000)
    assert not await first.directory.publish(KEYS[3], bytes(4096), time.time() + 600)
    assert not await first.directory.publish(KEYS[3], b"x", time.time() - 1)
    assert await last.directory.lookup(KEYS[3]) == {}


async def test_a_key_outside_the_run_is_our_mistake(trio):
    for key in ("members/0", BUCKETS.key(3, 8)):
        with pytest.raises(ValueError, match="not a key"):
            await trio[0].directory.publish(key, b"x", time.time() + 600)
        with pytest.raises(ValueError, match="not a key"):
            await trio[0].directory.lookup(key)


@pytest.fixture
def forger(trio):
    """Storage at the first node of forged records, past all local checks."""
    first, middle, _ = trio
    protocol = middle.dht
    ours = RecordValidator(middle.identity, RUN, BUCKETS, time.time)

    async def store(subkey, value: bytes, expires_at: float, key: str = KEYS[4]) -> bool:
        place = DHTID.generate(source=key)
        packed = MSGPackSerializer.dumps(value)
        record = DHTRecord(place.to_bytes(), MSGPackSerializer.dumps(subkey), packed, expires_at)
        answer = await protocol.call_store(
            PeerID.from_base58(first.id), [place], [ours.sign_value(record)], expires_at, [subkey]
        )
        return answer == [True]

    return store


async def test_other_nodes_refuse_what_is_forged_lives_too_long_or_is_too_large(trio, forger):
    first, middle, last = trio
    soon = time.time() + 600
    assert not await forger(last.id, b"x", soon)
    assert not await forger("nobody", b"x", soon)
    assert not await forger(None, b"x", soon)
    assert not await forger(middle.id, b"x", time.time() + 4000)
    assert not await forger(middle.id, bytes(4096), soon)
    assert not await forger(middle.id, b"x", soon, key="elsewhere")
    assert await forger(middle.id, b"x", soon)
    assert await first.directory.lookup(KEYS[4]) == {middle.id: b"x"}


async def test_calls_that_would_hurt_are_refused_and_forgotten(trio, monkeypatch):
    first, middle, _ = trio
    find, peer = middle.dht.call_find, PeerID.from_base58(first.id)
    first.blamed.clear()
    many = [DHTID.generate(source=str(number)) for number in range(300)]
    assert await find(peer, many[:5]) is None
    assert await find(peer, [many[0]] * 2) is None
    assert await find(peer, many[:4]) is not None
    monkeypatch.setattr(control, "REPLY_BYTES_MAX", 10)
    assert await find(peer, many[:4]) is None
    monkeypatch.undo()
    assert await find(peer, many[:4]) is not None
    ping = middle.dht.call_ping
    assert await ping(peer, validate=True, strict=False) is None
    store, soon = middle.dht.call_store, time.time() + 600
    assert await store(peer, [many[0]] * 2, [b"x"] * 2, soon) is None
    assert await store(peer, many[:256], [b"x"] * 256, soon) == [False] * 256
    assert await store(peer, many, [b"x"] * 300, soon) is None
    assert not first.transport.p2p._client.control._handler_tasks
    assert first.blamed == [(middle.id, "directory-call")] * 5


async def test_an_untrusted_peer_that_calls_all_the_time_is_refused_until_it_stops(trio):
    """Each answer has all records of the key: here a fifth of the most that it can have."""
    first, middle, last = trio
    place = DHTID.generate(source=KEYS[3])
    for number in range(50):
        first.dht.storage.store_subkey(place, f"{number}", bytes(4096), time.time() + 600)
    ask, peer = middle.dht.call_find, PeerID.from_base58(first.id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await ask(peer, [place]) is not None:
            pass
    assert await last.dht.call_find(peer, [place]) is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await ask(peer, [place]) is None:  # noqa: ASYNC110 - the other node causes it
            await asyncio.sleep(0.5)


async def test_a_peer_cannot_choose_its_place(trio, keys):
    first = trio[0]
    liar = await start(keys, 24, with_directory=False)
    await liar.transport.connect(await first.address())
    chosen = DHTID(int(DHTID.generate(source=KEYS[0])) ^ 1)
    node = await DHTNode.create(p2p=liar.transport.p2p, node_id=chosen)
    assert await node.protocol.call_ping(PeerID.from_base58(first.id)) is not None
    await asyncio.sleep(0.1)
    assert first.directory.neighbours == 2
    await liar.close()


async def test_one_that_starts_alone_joins_later(trio, keys):
    first, _, last = trio
    late = await start(keys, 25)
    expires_at = time.time() + 600
    assert await late.directory.publish(KEYS[5], b"late", expires_at)
    await publishes(last, KEYS[5], b"last")
    assert await late.directory.lookup(KEYS[5]) == {late.id: b"late"}
    dead = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWHpHQJewAUkxuQXdQjVyboLDPFdUP3mJ2tFXZrGUdDm2m"
    assert await late.directory.bootstrap([dead]) == 0
    assert late.directory.neighbours == 0
    assert await late.directory.bootstrap([dead, await first.address()]) == 1
    for node in (late, *trio):
        await sees(node, KEYS[5], {late.id: b"late", last.id: b"last"})
    await late.close()
    assert not await late.directory.publish(KEYS[5], b"x", expires_at)
    assert await late.directory.lookup(KEYS[5]) == {}


async def test_one_that_is_connected_to_joins_by_itself(trio, keys):
    first = trio[0]
    late = await start(keys, 26)
    await publishes(first, KEYS[6], b"first")
    await late.transport.connect(await first.address())
    await sees(late, KEYS[6], {first.id: b"first"})
    await late.close()


async def test_it_survives_the_death_of_p2pd_with_all_that_it_stored(trio):
    _, middle, last = trio
    expires_at = time.time() + 600
    await publishes(last, KEYS[7], b"before")
    await sees(middle, KEYS[7], {last.id: b"before"})
    pid = middle.transport.p2pd_pid
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(
        middle.directory.publish(KEYS[7], b"during", expires_at), PATIENCE_SECONDS
    )
    await asyncio.wait_for(middle.directory.lookup(KEYS[7]), PATIENCE_SECONDS)

    await publishes(middle, KEYS[7], b"after")
    assert middle.transport.p2pd_pid != pid
    expected = {last.id: b"before", middle.id: b"after"}
    for node in trio:
        await sees(node, KEYS[7], expected)
    assert middle.directory.neighbours >= 1


class Hiding(BoundedStorage):
    """Storage that accepts every record and returns none."""

    def store_subkey(self, key, subkey, value, expiration_time):
        del key, subkey, value, expiration_time
        return True

    def get(self, key):
        del key


def seeds_around(key: str, honest: list[str], count: int) -> list[int]:
    """Return seeds of keys closer to ``key`` than any honest one."""
    place = int(DHTID.generate(source=key))
    nearest = min(int(node_id(peer)) ^ place for peer in honest)
    tried = ((seed, Identity(bytes([seed]) * 32).peer_id) for seed in range(60, 256))
    return [seed for seed, peer in tried if int(node_id(peer)) ^ place < nearest][:count]


async def test_who_surrounds_a_bucket_hides_its_members_and_no_others(keys):
    """Keys are free, so an attacker can choose its positions in the directory."""
    bits, count, attackers = 3, 3, 6
    identities = [Identity(bytes([seed]) * 32).peer_id for seed in range(31, 31 + count)]
    homes = [BUCKETS.key_of(peer, bits) for peer in identities]
    assert len(set(homes)) == count
    around = seeds_around(homes[0], identities, attackers)
    assert len(around) == attackers, "more than copies are kept of a record"
    async with AsyncExitStack() as stack:

        async def started(seed: int) -> Node:
            node = await start(keys, seed)
            stack.push_async_callback(node.close)
            return node

        honest = [await started(seed) for seed in range(31, 31 + count)]
        liars = [await started(seed) for seed in around]
        for liar in liars:
            protocol = liar.dht
            protocol.storage = protocol.cache = Hiding()
        nodes = [*honest, *liars]
        addresses = {node.id: await node.address() for node in nodes}
        for node in nodes:
            others = [address for peer, address in addresses.items() if peer != node.id]
            await joins(node, others)
        for node, home in zip(honest, homes, strict=True):
            await publishes(node, home, node.id.encode())

        new_node = await started(59)
        await joins(new_node, [addresses[liars[0].id]])
        found, reader = set(), BucketReader(BUCKETS, Rng(b"new node"))
        for _ in range(60):
            key = reader.next(MEMBERS_PER_BUCKET << bits)
            found |= (await new_node.directory.lookup(key)).keys()
        assert found == {node.id for node in honest[1:]}
