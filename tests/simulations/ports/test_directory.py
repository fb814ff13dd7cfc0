"""The modelled directory keeps a bounded number of owners per key, the first to come."""

import asyncio

from protocol.types import PeerId
from simulations.network.links import SimClock
from simulations.ports.directory import OWNERS_PER_KEY_MAX, DirectoryQuality, SharedDirectory
from simulations.runtime.loop import START, run_virtual


def shared() -> SharedDirectory:
    return SharedDirectory(SimClock(asyncio.get_running_loop()), DirectoryQuality(delay_seconds=0))


def owners(count: int) -> list[PeerId]:
    return [PeerId(f"owner-{number}") for number in range(count)]


def test_a_full_key_takes_its_owners_news_and_no_newcomer():
    async def main():
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

    run_virtual(main())


def test_what_has_expired_makes_room():
    async def main():
        directory = shared()
        first, *known, late = owners(OWNERS_PER_KEY_MAX + 1)
        directory.store("key", first, b"1", START + 5)
        for owner in known:
            directory.store("key", owner, b"1", START + 10)
        await asyncio.sleep(6)
        assert directory.store("key", late, b"1", START + 20)
        assert list(directory.read("key", first)) == [*known, late]

    run_virtual(main())
