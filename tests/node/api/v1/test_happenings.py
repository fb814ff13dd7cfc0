import asyncio
import json

from node.api.v1.answers import RunEvent
from node.api.v1.happenings import HAPPENINGS_MAX, EventLog
from node.api.v1.queries import EventQuery
from node.api.v1.recording import Recording
from node.api.v1.stream import STREAMS_MAX, EventStreams, resume_from
from tests.browser.states import ready


def happening(number, kind="slashed"):
    return RunEvent(f"key/{number}", float(number), kind, "peer", f"number {number}")


def texts(numbered):
    return [one.text for _, one in numbered]


def test_the_list_is_bounded_and_takes_each_key_once():
    happenings = EventLog("boot")
    for number in range(3 * HAPPENINGS_MAX):
        happenings.add(happening(number))
        happenings.add(happening(number))
    kept = happenings.after("", 0)
    assert len(kept) == HAPPENINGS_MAX
    assert kept[-1][0] == 3 * HAPPENINGS_MAX
    happenings.add(happening(0))  # forgotten by now, so it is news
    assert texts(happenings.after("boot", kept[-1][0])) == ["number 0"]


def test_what_happens_all_day_pushes_nothing_rare_out():
    happenings = EventLog("boot", [happening(0), happening(1, "fork")])
    for number in range(2, 2 * HAPPENINGS_MAX):
        happenings.add(happening(number, "escalated"))
    page = happenings.page(EventQuery())
    assert page.kinds == {"escalated": HAPPENINGS_MAX - 2, "fork": 1, "slashed": 1}
    assert [one.kind for one in happenings.rare(6)] == ["fork", "slashed"]
    last = happenings.after("", 0)[-1]
    assert (last[0], last[1].text) == (2 * HAPPENINGS_MAX, f"number {2 * HAPPENINGS_MAX - 1}")


def test_who_comes_back_is_told_what_it_missed_and_after_a_restart_everything():
    happenings = EventLog("second", [happening(number) for number in range(5)])
    assert texts(happenings.after("second", 3)) == ["number 3", "number 4"]
    assert texts(happenings.after("second", 5)) == []
    assert len(happenings.after("first", 5)) == 5


def test_a_page_has_one_kind_the_newest_first():
    happenings = EventLog("boot", [happening(2, "fork"), happening(1), happening(3)])
    page = happenings.page(EventQuery(kind="slashed", limit=1))
    assert [one.text for one in page.rows] == ["number 3"]
    assert page.kinds == {"fork": 1, "slashed": 2}


def test_only_what_we_wrote_is_an_id_to_resume_from():
    assert resume_from("1700000000.123-17") == ("1700000000.123", 17)
    for text in ("", "17", "boot-", "boot-x", "boot-1-2x", "-" * 90, "boot-\u0661"):
        assert resume_from(text)[1] == 0


async def read(events, count):
    found = []
    async for piece in events:
        lines = dict(line.split(": ", 1) for line in piece.decode().splitlines() if ": " in line)
        if "event" in lines:
            found.append((lines["event"], lines.get("id", ""), json.loads(lines["data"])))
        if len(found) == count:
            return found
    raise AssertionError(found)


async def test_a_stream_begins_with_what_is_missing_and_then_tells_of_each_look():
    source = Recording(ready(), boot="b")
    known = source.happenings.number
    streams = EventStreams(source)
    events = streams.events("b", known - 1)
    hello, missed, look = await read(events, 3)
    assert hello == ("hello", "", {"boot": "b"})
    assert missed[:2] == ("happened", f"b-{known}")
    assert look[0] == "look" and look[2]["state"] == "ready"
    source.happenings.add(happening(99))
    waiting = asyncio.create_task(read(events, 2))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    source.happenings.wake()
    async with asyncio.timeout(60):
        (kind, id_, data), (then, _, _) = await waiting
    assert (kind, id_, data["text"], then) == ("happened", f"b-{known + 1}", "number 99", "look")
    await events.aclose()


async def test_so_many_pages_may_watch_and_who_leaves_makes_room():
    streams = EventStreams(Recording(ready()))
    opened = [streams.events("", 0) for _ in range(STREAMS_MAX)]
    for events in opened:
        await anext(events)
    assert not streams.has_room
    await opened[0].aclose()
    assert streams.has_room
    for events in opened:
        await events.aclose()
