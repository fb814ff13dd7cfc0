"""The digest of a trace covers all of its content."""

import pytest

from simulations.runtime.trace import Event, Trace


def traced(*events) -> Trace:
    trace = Trace()
    for at, node, kind, facts in events:
        trace.emit(at, node, kind, **facts)
    return trace


EVENTS = [(1.0, "a", "x", {"one": 1, "two": b"\2"}), (2.0, "b", "y", {})]


@pytest.mark.parametrize(
    "other",
    [
        EVENTS[:1],
        EVENTS[::-1],
        [(1.000001, *EVENTS[0][1:]), EVENTS[1]],
        [(1.0, "b", *EVENTS[0][2:]), EVENTS[1]],
        [(1.0, "a", "z", EVENTS[0][3]), EVENTS[1]],
        [(1.0, "a", "x", {"one": 1, "two": b"\3"}), EVENTS[1]],
        [(1.0, "a", "x", {"one": 1, "other": b"\2"}), EVENTS[1]],
    ],
)
def test_another_story_has_another_digest(other):
    assert traced(*EVENTS).digest == traced(*EVENTS).digest
    assert traced(*EVENTS).digest != traced(*other).digest


def test_the_order_in_which_facts_are_told_is_no_part_of_the_story():
    turned = [(1.0, "a", "x", {"two": b"\2", "one": 1}), EVENTS[1]]
    assert traced(*EVENTS).digest == traced(*turned).digest


def test_listeners_hear_what_comes_after_them_in_order():
    trace, heard = Trace(), []
    trace.emit(1.0, "a", "before")
    trace.listen(lambda event: heard.append(("first", event)))
    trace.listen(lambda event: heard.append(("second", event)))
    trace.emit(2.0, "a", "after", fact=1)
    event = Event(2.0, "a", "after", {"fact": 1})
    assert heard == [("first", event), ("second", event)]
    assert trace.events == 2
