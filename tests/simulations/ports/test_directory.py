"""Modelled directory: a bounded number of owners per key, first come first served."""

import asyncio

import pytest

from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.membership.directory_buckets import OWNERS_PER_KEY_MAX
from simulations.network.links import SimClock
from simulations.ports.directory import SharedDirectory
from simulations.runtime.cores import Core
from simulations.runtime.loop import START, VirtualLoop
from simulations.scenario.scenario import DirectoryQuality

pytestmark = pytest.mark.virtual(loop=VirtualLoop)


def sim_clock() -> SimClock:
    loop = asyncio.get_running_loop()
    return SimClock(loop, Core(loop))


def shared() -> SharedDirectory:
    return SharedDirectory(sim_clock(), DirectoryQuality(delay_seconds=0))


def owners(count: int) -> list[PeerId]:
    return [PeerId(f"owner-{number}") for number in range(count)]


async def test_a_full_key_takes_its_owners_news_and_no_new_owner():
    directory = shared()
    *known, late = owners(OWNERS_PER_KEY_MAX + 1)
    for owner in known:
        assert directory.store("key", owner, b"1", START + 10)
    assert not directory.store("key", late, b"1", START + 10)
    assert directory.store("key", known[0], b"2", START + 10)
    assert directory.store("other", late, b"1", START + 10)
    found = directory.read("key", late)
    assert list(found) == known
    assert found[known[0]] == b"2"


async def test_what_has_expired_makes_room():
    directory = shared()
    first, *known, late = owners(OWNERS_PER_KEY_MAX + 1)
    directory.store("key", first, b"1", START + 5)
    for owner in known:
        directory.store("key", owner, b"1", START + 10)
    await asyncio.sleep(6)
    assert directory.store("key", late, b"1", START + 20)
    assert list(directory.read("key", first)) == [*known, late]


# Degradation

KEY, OWNER, READER = "key", PeerId("owner"), PeerId("reader")
PERFECT = {"lookup_seconds": 0.0, "delay_seconds": 0.0, "missing": 0.0, "failing": 0.0}


def of_quality(**options) -> SharedDirectory:
    quality = DirectoryQuality(**PERFECT | options)
    return SharedDirectory(sim_clock(), quality)


async def test_a_record_is_seen_some_time_after_it_was_published_and_until_it_expires():
    directory = of_quality(delay_seconds=5.0)
    ours, theirs = (directory.directory(peer, Rng(b"1")) for peer in (OWNER, READER))
    assert await ours.publish(KEY, b"1", START + 20)
    await asyncio.sleep(4.9)
    assert await theirs.lookup(KEY) == {}
    await asyncio.sleep(0.2)
    assert await theirs.lookup(KEY) == {OWNER: b"1"}
    assert await theirs.lookup("other") == {}
    await asyncio.sleep(14)
    assert await theirs.lookup(KEY) == {OWNER: b"1"}
    await asyncio.sleep(1)
    assert await theirs.lookup(KEY) == {}


async def test_what_a_record_said_before_is_seen_until_its_news_are():
    directory = of_quality(delay_seconds=5.0)
    node = directory.directory(OWNER, Rng(b"1"))
    for value, seen in ((b"1", {}), (b"2", {OWNER: b"1"}), (b"3", {OWNER: b"2"})):
        await node.publish(KEY, value, START + 100)
        await asyncio.sleep(4.9)
        assert await node.lookup(KEY) == seen
        await asyncio.sleep(1)


async def test_calls_take_time_and_some_achieve_nothing():
    directory = of_quality(lookup_seconds=2.0, failing=0.3)
    node = directory.directory(OWNER, Rng(b"1"))
    began = asyncio.get_running_loop().time()
    stored = [await node.publish(KEY, b"1", START + 10_000) for _ in range(300)]
    found = [bool(await node.lookup(KEY)) for _ in range(300)]
    seconds = asyncio.get_running_loop().time() - began
    assert seconds / 600 == pytest.approx(2.0, rel=0.1)
    assert sum(stored) / 300 == pytest.approx(0.7, abs=0.08)
    assert sum(found) / 300 == pytest.approx(0.7, abs=0.08)


async def test_a_look_up_misses_a_share_of_the_records_other_ones_each_time():
    directory = of_quality(missing=0.25)
    known = owners(200)
    for owner in known:
        directory.store(KEY, owner, b"1", START + 1000)
    node = directory.directory(READER, Rng(b"1"))
    found = [await node.lookup(KEY) for _ in range(20)]
    assert sum(map(len, found)) / (20 * 200) == pytest.approx(0.75, abs=0.03)
    assert set().union(*found) == set(known)


async def test_records_do_not_cross_a_cut():
    islands = {OWNER: 1, READER: 2, PeerId("neighbour"): 1}
    clock = sim_clock()
    quality = DirectoryQuality(delay_seconds=0, lookup_seconds=0)
    directory = SharedDirectory(clock, quality, lambda one, other: islands[one] == islands[other])
    directory.store(KEY, OWNER, b"1", START + 10)
    assert directory.read(KEY, READER) == {}
    assert directory.read(KEY, PeerId("neighbour")) == {OWNER: b"1"}
