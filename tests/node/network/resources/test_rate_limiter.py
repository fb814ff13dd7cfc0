"""Rate limiter by its three uses: requests are refused, opened streams blamed, reads delayed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.network.connections.gater import OPEN_RATES
from node.network.gossip.config import READ_BURST_BYTES, READ_BYTES_MIN, READ_RATES, WAKE_BYTES
from node.network.resources.rate_limiter import (
    ACTIVE_SECONDS,
    KEYS_MAX,
    RECOUNT_SECONDS,
    Rate,
    RateLimiter,
    Rates,
)

PER_SECOND, BURST = 2.0, 6
REQUESTS = Rates(untrusted=Rate(PER_SECOND, BURST), trusted=Rate(8 * PER_SECOND, 8 * BURST))
READ = 64 << 10
READ_SHARED = READ_RATES.shared.per_second
READ_EACH = READ_RATES.untrusted.per_second
OPEN_SHARED = OPEN_RATES.shared.per_second


def limiter(rates):
    return RateLimiter("table", rates, lambda key: key.startswith("trusted"))


def taken(table, key, count, now):
    return sum(table.take(key, 1, now) for _ in range(count))


def wait_seconds(table, key, size, now):
    return table.wait_seconds(key, now) if table.charge(key, size + WAKE_BYTES, now) else 0.0


def read_for(table, seconds, *keys, size=READ):
    """Let keys send at full rate, and return the bytes charged to each meanwhile."""
    due, read = dict.fromkeys(keys, 0.0), dict.fromkeys(keys, 0)
    while True:
        key = min(due, key=due.__getitem__)
        now = due[key]
        if now >= seconds:
            return read
        read[key] += size + WAKE_BYTES
        due[key] = now + wait_seconds(table, key, size, now) + 0.001


def opened_for(table, seconds, rates, now=0.0):
    """Open streams at steady rates; return how many of each key were not taken."""
    faults = Counter()
    due = ((now + n / rate, key) for key, rate in rates.items() for n in range(int(rate * seconds)))
    for at, key in sorted(due):
        faults[key] += not table.take(key, 1, at)
    return faults


# Refused


def test_a_key_has_a_burst_then_its_rate_and_a_burst_again_after_a_rest():
    table = limiter(REQUESTS)
    assert taken(table, "one", 100, 1000.0) == BURST
    assert taken(table, "other", 1, 1000.0) == 1
    assert [taken(table, "one", 100, 1000.0 + s) for s in (0.25, 0.5, 0.75, 1.0, 2.0)] == [
        0,
        1,
        0,
        1,
        2,
    ]
    assert taken(table, "one", 100, 5000.0) == BURST


def test_a_trusted_key_has_its_own_rate():
    table = limiter(REQUESTS)
    assert taken(table, "trusted", 1000, 1000.0) == 8 * BURST
    assert taken(table, "trusted", 1000, 1001.0) == 8 * PER_SECOND


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=200))
def test_over_any_stretch_a_key_has_a_burst_and_its_rate_at_most(requests):
    """Counted by hand: the number taken between every two moments."""
    table, now, passed = limiter(REQUESTS), 1e6, []
    for key, pause_seconds in requests:
        now += pause_seconds
        if table.take(key, 1, now):
            passed.append((now, key))
    for key in "ab":
        times = [at for at, other in passed if other == key]
        for first, began in enumerate(times):
            for last in range(first, len(times)):
                stretch_seconds = times[last] - began
                assert last - first + 1 <= BURST + PER_SECOND * stretch_seconds + 1e-6


# Blamed


@pytest.mark.parametrize("floods", [1, 10])
def test_while_too_many_are_opened_those_over_their_share_are_refused(floods):
    quiet = {f"quiet {number}": OPEN_RATES.share_min / 2 for number in range(100)}
    loud = {f"loud {number}": 3 * OPEN_SHARED / floods for number in range(floods)}
    faults = opened_for(limiter(OPEN_RATES), 120, quiet | loud)
    assert all(faults[key] > 100 for key in loud)
    assert not any(faults[key] for key in quiet)


def test_no_key_is_refused_while_there_is_room_for_all():
    one = {"one": 0.9 * OPEN_SHARED}
    assert not any(opened_for(limiter(OPEN_RATES), 60, one).values())
    unequal = {"one": 0.5 * OPEN_SHARED} | {f"{n}": 0.4 * OPEN_SHARED / 99 for n in range(99)}
    assert not any(opened_for(limiter(OPEN_RATES), 60, unequal).values())


def test_a_share_is_the_shared_rate_by_the_number_of_active_keys():
    table = limiter(OPEN_RATES)
    few = {"one": 0.9 * OPEN_SHARED / 4} | {f"{n}": 1.5 * OPEN_SHARED / 4 for n in range(3)}
    faults = opened_for(table, 60, few)
    assert not faults.pop("one")
    assert all(count > 50 for count in faults.values())
    later = 60 + ACTIVE_SECONDS + RECOUNT_SECONDS
    assert not any(opened_for(table, 60, {"1": 0.9 * OPEN_SHARED}, later).values())


def test_a_refund_cancels_a_charge_and_is_no_credit():
    table = limiter(OPEN_RATES)
    for number in range(20 * int(OPEN_SHARED)):
        now = number / (4 * OPEN_SHARED)
        assert table.take("one", 1, now)
        table.adjust("one", -1)
    table.adjust("nobody", -1)
    for _ in range(10_000):
        table.adjust("one", -1)
    assert opened_for(table, 10, {"one": 4 * OPEN_SHARED}, now)["one"] > 100


# Delayed


@pytest.mark.parametrize(
    ("key", "rate"), [("untrusted", READ_RATES.untrusted), ("trusted", READ_RATES.trusted)]
)
def test_a_key_that_sends_all_it_can_is_read_at_its_rate(key, rate):
    read = read_for(limiter(READ_RATES), 60.0, key)[key]
    assert 60 * rate.per_second < read <= 60 * rate.per_second + rate.burst + READ + WAKE_BYTES


@pytest.mark.parametrize("size", [1, 4096])
def test_untrusted_keys_share_one_rate_evenly(size):
    keys = [f"{number}" for number in range(40)]
    read = read_for(limiter(READ_RATES), 120.0, *keys, size=size)
    bursts = READ_SHARED + len(keys) * 2 * (READ_BYTES_MIN + size)
    assert 100 * READ_SHARED < sum(read.values()) <= 122 * READ_SHARED + bursts
    assert max(read.values()) - min(read.values()) <= READ_BURST_BYTES + size


def test_hundreds_that_send_little_use_no_more_than_few_that_send_much():
    """480 with 1.7 RPCs a second that take 0.8 ms each: two thirds of a core."""
    table, every, extra = limiter(READ_RATES), 0.6, 8000 - 2000
    due = {f"{number}": number * every / 480 for number in range(480)}
    charged, waits, looked_at = 0, [], 0.0
    while (now := min(due.values())) < 60.0:
        key = min(due, key=due.__getitem__)
        due[key] = now + wait_seconds(table, key, 2000, now) + every
        table.adjust(key, extra)
        charged += 8000 if now > 10 else 0
        if now > looked_at + 1:
            waits.append(wait_seconds(table, "new node", 500, now))
            looked_at = now
    assert 0.8 * READ_SHARED < charged / 50 < 1.2 * READ_SHARED
    assert waits == [0.0] * len(waits), "a key within its share waits for no other"


def test_costs_of_many_quiet_keys_count_for_the_shared_rate():
    table = limiter(READ_RATES)
    for second in range(1, 11):
        due = [table.charge(f"quiet-{number}", 2 << 10, float(second)) for number in range(400)]
        assert second > 1 or not any(due[:200])
    assert not limiter(READ_RATES).charge("new node", 1, 11.0)
    assert table.charge("new node", 1, 11.0), "every cost is checked"


def test_a_quiet_key_does_not_wait_for_the_loud_ones():
    table = limiter(READ_RATES)
    read_for(table, 30.0, *(f"{number}" for number in range(20)))
    waits = [wait_seconds(table, "quiet", 2048, 30.0 + second) for second in range(60)]
    assert waits == [0.0] * 60
    later = 90.0 + ACTIVE_SECONDS + RECOUNT_SECONDS
    waits = [wait_seconds(table, "quiet", 30_000, later + second) for second in range(60)]
    assert waits == [0.0] * 60, "it shares with none of them"


def test_new_keys_have_no_burst_of_their_own_while_untrusted_keys_are_over_their_rate():
    table = limiter(READ_RATES)
    keys = READ_RATES.shared.burst // READ_BYTES_MIN * 4
    waits = [wait_seconds(table, f"{number}", READ_BYTES_MIN * 2, 1.0) for number in range(keys)]
    assert waits[0] == 0.0
    assert waits[-1] > 0.0
    assert wait_seconds(table, "trusted", READ_BYTES_MIN * 2, 1.0) == 0.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["trusted", "a", "b", "c"]), st.integers(1, READ), st.floats(0, 10)
        ),
        max_size=80,
    )
)
def test_no_key_is_read_above_its_rate_and_a_burst(steps):
    table, now, read, free_at = limiter(READ_RATES), 0.0, Counter(), Counter()
    for key, size, pause_seconds in steps:
        now = max(now + pause_seconds, free_at[key])
        wait = wait_seconds(table, key, size, now)
        assert wait >= 0
        free_at[key] = now + wait
        read[key] += size
        rate = READ_RATES.trusted.per_second if key == "trusted" else READ_EACH
        assert read[key] <= READ_BURST_BYTES + READ + rate * free_at[key] + 1


# Tables


def test_keys_without_debt_are_forgotten_and_their_number_is_bounded():
    table = limiter(READ_RATES)
    for number in range(KEYS_MAX + 100):
        table.charge(f"{number}", 1, 0.0)
    assert len(table) == KEYS_MAX
    table.charge("last", 1, RECOUNT_SECONDS)
    assert len(table) == 1


def test_the_key_used_longest_ago_is_evicted_first():
    table = limiter(REQUESTS)
    assert taken(table, "a", 100, 0.0) == taken(table, "b", 100, 0.0) == BURST
    assert not table.take("a", 1, 0.0)
    for number in range(KEYS_MAX - 1):
        assert table.take(f"{number}", 1, 0.0)
    assert not table.take("a", 1, 0.0)
    assert table.take("b", 1, 0.0), "it was forgotten"
