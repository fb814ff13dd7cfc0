from hypothesis import given
from hypothesis import strategies as st

from protocol.ledger.slot_window import WINDOW_SLOTS, SlotWindow

SLOTS = st.integers(0, 40) | st.integers(0, 3 * WINDOW_SLOTS) | st.just(2**53)


def bits_of(decided):
    last = max(decided, default=-1)
    return sum(2**age for age in range(WINDOW_SLOTS) if last - age in decided)


@given(st.lists(SLOTS, max_size=60), SLOTS)
def test_a_window_is_a_set_of_slots(offered, other):
    window, decided = SlotWindow(), set()
    for slot in offered:
        is_old = slot <= max(decided, default=0) - WINDOW_SLOTS
        assert window.is_open(slot) == (slot not in decided and not is_old)
        if window.is_open(slot):
            window = window.decide(slot)
            decided.add(slot)
        assert window.next_slot == max(decided, default=-1) + 1
        assert window.slots == len(decided)
        assert window.gaps == window.next_slot - len(decided)
        assert int.from_bytes(window.window, "big") == bits_of(decided)
        assert window.is_possible
    assert window.is_open(other) == (
        other not in decided and other > max(decided, default=0) - WINDOW_SLOTS
    )


def test_the_bounds_of_the_window():
    window = SlotWindow().decide(300)
    assert [window.is_open(slot) for slot in (44, 45, 299, 300, 301)] == [
        False, True, True, False, True,
    ]  # fmt: skip
    assert window.decide(300 + WINDOW_SLOTS).window == bytes(31) + b"\1"
    assert window.decide(299 + WINDOW_SLOTS).window == b"\x80" + bytes(30) + b"\1"


@given(st.integers(0, 600), st.integers(0, 600), st.sets(st.integers(0, 255)))
def test_numbers_that_decisions_cannot_lead_to_are_seen(next_slot, slots, ages):
    bits = sum(1 << age for age in ages)
    window = SlotWindow(next_slot, slots, bits.to_bytes(32, "big"))
    is_led_to = (0 in ages) == (next_slot > 0) and all(age < next_slot for age in ages)
    older = slots - len(ages)
    assert window.is_possible == (is_led_to and 0 <= older <= max(0, next_slot - WINDOW_SLOTS))
