"""Rate limiter of directory calls: long callers are refused for a while, and no others."""

import asyncio

import pytest

from node.network.resources.dht_call_limiter import (
    BYTE_SECONDS,
    RATES,
    REFUSED_MAX,
    CallError,
    DhtCallLimiter,
)
from roles.ports.transport import Trust

pytestmark = pytest.mark.virtual

LOOKUP_SECONDS = 0.003


class Callers:
    """Callers of a node with given response times, in a clock of the test."""

    def __init__(self):
        self.spent_seconds = 0.0
        self.blamed = []
        self.calls = DhtCallLimiter(
            lambda: self.spent_seconds,
            Trust(lambda peer: peer == "worker"),
            lambda peer, fault: self.blamed.append((peer, str(fault.code))),
        )

    async def call(self, peer, seconds=LOOKUP_SECONDS, request_bytes=50):
        """Return whether the call was answered."""

        async def answer():
            self.spent_seconds += seconds
            return b"found"

        try:
            return await self.calls.serve(peer, request_bytes, answer) == b"found"
        except CallError:
            return False

    async def flood(self, seconds, *peers, each_second):
        """Call continuously; return the call seconds per second in the second half."""
        for step in range(int(seconds * each_second)):
            if step == int(seconds * each_second) // 2:
                before = self.spent_seconds
            for peer in peers:
                await self.call(peer)
            await asyncio.sleep(1 / each_second)
        return (self.spent_seconds - before) / (seconds / 2)


def share(rate_bytes):
    return rate_bytes * BYTE_SECONDS


@pytest.mark.parametrize(
    ("peers", "each_second", "rate"),
    [
        (["untrusted"], 20, RATES.untrusted.per_second),
        ([f"untrusted-{number}" for number in range(40)], 2, RATES.shared.per_second),
        (["worker"], 100, RATES.trusted.per_second),
    ],
    ids=["an untrusted peer", "many of them", "a trusted one"],
)
async def test_callers_have_a_share_of_the_core(peers, each_second, rate):
    took = await Callers().flood(60, *peers, each_second=each_second)
    assert 0.7 * share(rate) < took < 1.1 * share(rate)


async def test_while_untrusted_peers_call_all_the_time_members_and_quiet_ones_are_answered():
    callers, answered = Callers(), []
    flood = asyncio.create_task(
        callers.flood(60, *(f"loud-{n}" for n in range(40)), each_second=20)
    )
    for number in range(5):
        await asyncio.sleep(10)
        answered += [await callers.call("worker"), await callers.call(f"new node-{number}")]
    await flood
    assert all(answered)


async def test_a_new_key_for_each_call_is_no_way_round():
    """The debt of a departed key is charged to all untrusted peers together."""
    callers = Callers()
    answered = [await callers.call(f"key-{n}", 0.0, 100_000) for n in range(100)]
    assert sum(answered) < 10
    callers = Callers()
    answered = [await callers.call(f"key-{n}", 0.05) for n in range(10)]
    assert all(answered), "each is known to cost that only when it has"
    assert not await callers.call("another", 0.0, 20_000)


async def test_what_a_call_causes_later_is_charged_too():
    callers = Callers()
    with callers.calls.charged("untrusted"):
        callers.spent_seconds += 1.0
    assert not await callers.call("untrusted")
    await asyncio.sleep(1.0 / share(RATES.untrusted.per_second))
    assert await callers.call("untrusted")


async def test_who_goes_on_when_it_is_refused_is_at_fault():
    callers = Callers()
    await callers.call("flooder", 1.0)
    await callers.call("unlucky", 1.0)
    refused = [await callers.call("flooder") for _ in range(REFUSED_MAX)]
    assert not any(refused)
    assert not callers.blamed
    await callers.call("flooder")
    assert callers.blamed == [("flooder", "directory-call")]
    assert not await callers.call("unlucky")
    await asyncio.sleep(1.0 / share(RATES.untrusted.per_second))
    assert await callers.call("unlucky")
    await callers.call("unlucky", 1.0)
    await asyncio.gather(*(callers.call("unlucky") for _ in range(REFUSED_MAX)))
    assert len(callers.blamed) == 1, "only those since it was answered count"
