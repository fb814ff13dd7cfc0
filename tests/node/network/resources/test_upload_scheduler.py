"""Upload bandwidth shared by trusted and untrusted peers."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from node.network.resources.upload_scheduler import PAYLOAD_SHARE, UNTRUSTED_WEIGHT, UploadScheduler

pytestmark = pytest.mark.virtual

LINE_BYTES = 1_000_000
RATE = PAYLOAD_SHARE * LINE_BYTES
PIECE_BYTES = 4096


async def sent(seconds, **wanting):
    """Return the bytes per second of each flooding peer after the first second.

    ``wanting`` maps names to concurrent requests. Names with the prefix "worker" are trusted, and
    those with the suffix "messages" request messages.
    """
    cap, counts = UploadScheduler(LINE_BYTES), Counter()

    async def ask(name):
        while True:
            trusted, messages = name.startswith("worker"), name.endswith("messages")
            await cap.take(PIECE_BYTES, trusted=trusted, messages=messages)
            counts[name] += PIECE_BYTES

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(ask(name)) for name, many in wanting.items() for _ in range(many)
        ]
        await asyncio.sleep(1)
        counts.clear()
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
    return {name: counts[name] / seconds for name in wanting}


async def test_untrusted_peers_have_a_fifth_of_a_line_that_all_want_however_many_they_are():
    rates = await sent(30, worker=4, untrusted=250)
    fifth = UNTRUSTED_WEIGHT / (1 + UNTRUSTED_WEIGHT)
    assert rates["untrusted"] == pytest.approx(fifth * RATE, rel=0.02)
    assert rates["worker"] == pytest.approx((1 - fifth) * RATE, rel=0.02)


async def test_few_that_want_messages_do_not_wait_for_hundreds_that_want_weights():
    wanting = {"worker": 4, "worker_messages": 2, "untrusted": 250, "untrusted_messages": 2}
    rates = await sent(30, **wanting)
    assert rates["untrusted_messages"] == pytest.approx(rates["untrusted"], rel=0.02)
    assert rates["worker_messages"] == pytest.approx(rates["worker"], rel=0.02)
    share = UNTRUSTED_WEIGHT / 2 / (1 + UNTRUSTED_WEIGHT)
    assert rates["untrusted_messages"] == pytest.approx(share * RATE, rel=0.02)


@pytest.mark.parametrize("name", ["worker", "untrusted"])
async def test_what_one_leaves_the_other_has(name):
    rates = await sent(30, **{name: 3})
    assert rates[name] == pytest.approx(RATE, rel=0.02)


async def test_trusted_peers_share_their_part_evenly():
    rates = await sent(30, worker_1=4, worker_2=4, untrusted=100)
    assert rates["worker_1"] == pytest.approx(rates["worker_2"], rel=0.02)


@pytest.mark.parametrize(("first", "then"), [(False, True), (True, False)])
async def test_what_was_not_used_is_not_owed(first, then):
    """A late peer does not get the whole line until it has caught up with the others."""
    cap, counts = UploadScheduler(LINE_BYTES), Counter()

    async def ask(trusted):
        while True:
            await cap.take(PIECE_BYTES, trusted=trusted)
            counts[trusted] += PIECE_BYTES

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(first)) for _ in range(20)]
        await asyncio.sleep(20)
        tasks += [group.create_task(ask(then)) for _ in range(20)]
        counts.clear()
        await asyncio.sleep(10)
        for task in tasks:
            task.cancel()
    assert counts[False] / counts[True] == pytest.approx(UNTRUSTED_WEIGHT, rel=0.05)


async def test_a_worker_that_comes_back_after_a_while_waits_for_no_more_than_a_few_pieces():
    cap, waits = UploadScheduler(LINE_BYTES), []
    clock = asyncio.get_running_loop().time

    async def strange():
        while True:
            await cap.take(PIECE_BYTES, trusted=False)

    tasks = [asyncio.create_task(strange()) for _ in range(100)]
    for _ in range(10):
        await asyncio.sleep(5)
        began = clock()
        await cap.take(PIECE_BYTES, trusted=True)
        waits.append(clock() - began)
    for task in tasks:
        task.cancel()
    assert max(waits) <= 3 * PIECE_BYTES / RATE


async def test_a_peer_that_leaves_while_it_waits_holds_nobody_up():
    cap = UploadScheduler(LINE_BYTES)
    tasks = [asyncio.create_task(cap.take(LINE_BYTES, trusted=False)) for _ in range(20)]
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    began = asyncio.get_running_loop().time()
    await cap.take(PIECE_BYTES, trusted=False)
    assert asyncio.get_running_loop().time() - began < 1.2, "only the first one had begun"
