import asyncio
import json

from node.api.v1.answers import RunEvent
from node.api.v1.event_log import EVENTS_KEPT, EventLog
from node.api.v1.queries import EventQuery
from node.api.v1.recording import Recording
from node.api.v1.stream import STREAMS_MAX, EventStreams, resume_from
from tests.browser.states import ready


def event(number, kind="slashed"):
    return RunEvent(f"key/{number}", float(number), kind, "peer", f"number {number}")


def texts(numbered):
    return [one.text for _, one in numbered]


def test_the_list_is_bounded_and_takes_each_key_once():
    event_log = EventLog("boot")
    for number in range(3 * EVENTS_KEPT):
        event_log.add(event(number))
        event_log.add(event(number))
    kept = event_log.after("", 0)
    assert len(kept) == EVENTS_KEPT
    assert kept[-1][0] == 3 * EVENTS_KEPT
    event_log.add(event(0))  # forgotten by now, so it is news
    assert texts(event_log.after("boot", kept[-1][0])) == ["number 0"]


def test_what_happens_all_day_pushes_nothing_rare_out():
    event_log = EventLog("boot", [event(0), event(1, "fork")])
    for number in range(2, 2 * EVENTS_KEPT):
        event_log.add(event(number, "escalated"))
    page = event_log.page(EventQuery())
    assert page.kinds == {"escalated": EVENTS_KEPT - 2, "fork": 1, "slashed": 1}
    assert [one.kind for one in event_log.rare(6)] == ["fork", "slashed"]
    last = event_log.after("", 0)[-1]
    assert (last[0], last[1].text) == (2 * EVENTS_KEPT, f"number {2 * EVENTS_KEPT - 1}")


def test_who_comes_back_is_told_what_it_missed_and_after_a_restart_everything():
    event_log = EventLog("second", [event(number) for number in range(5)])
    assert texts(event_log.after("second", 3)) == ["number 3", "number 4"]
    assert texts(event_log.after("second", 5)) == []
    assert len(event_log.after("first", 5)) == 5


def test_a_page_has_one_kind_the_newest_first():
    event_log = EventLog("boot", [event(2, "fork"), event(1), event(3)])
    page = event_log.page(EventQuery(kind="slashed", limit=1))
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
    known = source.event_log.number
    streams = EventStreams(source)
    events = streams.events("b", known - 1)
    hello, missed, look = await read(events, 3)
    assert hello == ("hello", "", {"boot": "b"})
    assert missed[:2] == ("happened", f"b-{known}")
    assert look[0] == "look" and look[2]["state"] == "ready"
    source.event_log.add(event(99))
    waiting = asyncio.create_task(read(events, 2))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    source.event_log.wake()
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
