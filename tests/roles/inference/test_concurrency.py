"""Learned concurrency limit, against machines with modelled throughput."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roles.inference.concurrency import (
    GAIN_MIN,
    LIMIT_MAX,
    WINDOW_SECONDS,
    WINDOWS_BETWEEN_TRIALS,
    Concurrency,
)

HOURS = 3600.0


class Machine:
    """Always computes at the limit; ``rate(n)`` tokens a second, ``tokens`` per rollout."""

    def __init__(self, rate, tokens=1000.0, seconds_max=math.inf):
        self.rate, self.tokens, self.seconds_max = rate, tokens, seconds_max
        self.concurrency = Concurrency()
        self.now = 0.0
        self.made = 0.0
        self.limits = []

    @property
    def latency(self):
        return self.tokens * self.concurrency.limit / self.rate(self.concurrency.limit)

    def run(self, seconds, step=2.5):
        for _ in range(round(seconds / step)):
            self.concurrency.note(self.concurrency.limit, self.now)
            self.now += step
            self.made += step * self.rate(self.concurrency.limit)
            if self.latency < math.inf:
                self.concurrency.ended(self.latency)
            self.concurrency.observe(int(self.made), 0.0, self.seconds_max, self.now)
            self.limits.append(self.concurrency.limit)
        return self

    def most_frequent(self):
        return max(set(self.limits), key=self.limits.count)


def saturating(most, at):
    """Return a machine that scales linearly up to ``at`` concurrent rollouts, and no further."""
    return lambda n: most * min(n, at) / at


def test_a_small_machine_stays_at_one():
    machine = Machine(lambda _: 100.0).run(4 * HOURS)
    assert machine.most_frequent() == 1
    assert max(machine.limits) == 2
    assert machine.limits.count(2) / len(machine.limits) < 0.15, "trials are rare"


@pytest.mark.parametrize("at", [2, 8, 32])
def test_a_large_machine_is_filled_within_minutes(at):
    machine = Machine(saturating(1000.0, at)).run(20 * WINDOW_SECONDS)
    assert max(machine.limits) >= at
    machine.run(4 * HOURS)
    assert machine.most_frequent() == at


@settings(deadline=None, max_examples=60)
@given(
    at=st.integers(1, 300),
    exponent=st.floats(0, 1),
    unevenness=st.floats(0, 0.05),
    phase=st.integers(0, 10),
)
def test_the_limit_settles_where_twice_as_many_gain_too_little(at, exponent, unevenness, phase):
    def rate(n):
        uneven = 1 + unevenness * math.sin(7 * machine.now / WINDOW_SECONDS + phase)
        return 100.0 * min(n, at) ** exponent * uneven

    machine = Machine(rate)
    machine.run(3 * HOURS)
    machine.limits.clear()
    machine.run(2 * HOURS)
    limit = machine.most_frequent()
    margin = 4 * unevenness

    def gain(n):
        return min(2 * n, at) ** exponent / min(n, at) ** exponent - 1

    assert min(machine.limits) >= 1 and max(machine.limits) <= LIMIT_MAX
    assert limit == LIMIT_MAX or gain(limit) < GAIN_MIN + margin, "more would have been worth it"
    assert limit == 1 or gain(limit // 2) >= GAIN_MIN - margin, "less would have done"


@settings(deadline=None, max_examples=40)
@given(at=st.integers(1, 64), seconds_max=st.floats(1, 100), tokens=st.floats(100, 5000))
def test_no_rollout_takes_longer_than_its_policy_lives(at, seconds_max, tokens):
    """Exception: one rollout alone exceeds it; then no limit helps."""
    rate = saturating(1000.0, at)
    machine = Machine(rate, tokens=tokens, seconds_max=seconds_max).run(2 * HOURS)
    machine.limits.clear()
    machine.run(HOURS)
    for limit in set(machine.limits):
        assert limit == 1 or tokens * limit / rate(limit) <= seconds_max


def test_policies_that_come_faster_lower_the_limit():
    machine = Machine(lambda n: 100.0 * n**0.8, seconds_max=1000.0).run(2 * HOURS)
    before = machine.most_frequent()
    machine.seconds_max = machine.latency / 3
    machine.run(2 * HOURS)
    machine.limits.clear()
    machine.run(HOURS)
    assert max(machine.limits) < before
    assert machine.latency <= machine.seconds_max


def test_a_rollout_that_has_not_ended_is_old_too():
    concurrency = Concurrency()
    concurrency.limit = 8
    for tick in range(1, 20):
        concurrency.note(8, 10.0 * tick)
        concurrency.observe(1000 * tick, 10.0 * tick, 50.0, 10.0 * tick)
    assert concurrency.limit < 8


def test_what_breaks_halves_the_limit_and_it_is_tried_again_later():
    machine = Machine(saturating(1000.0, 64)).run(2 * HOURS)
    assert machine.concurrency.limit == 64
    for expected in (32, 16):
        machine.concurrency.broke()
        assert machine.concurrency.limit == expected
    machine.limits.clear()
    machine.run((WINDOWS_BETWEEN_TRIALS - 2) * WINDOW_SECONDS)
    assert set(machine.limits) == {16}
    machine.run(2 * HOURS)
    assert machine.most_frequent() == 64
    for _ in range(20):
        machine.concurrency.broke()
    assert machine.concurrency.limit == 1


def test_a_machine_that_has_less_to_do_than_it_may_learns_nothing():
    """Twenty were allowed and two were wanted, which says nothing about twenty."""
    concurrency = Concurrency()
    concurrency.limit = 16
    for tick in range(2000):
        concurrency.note(2, 5.0 * tick)
        concurrency.observe(100 * tick, 0.0, math.inf, 5.0 * tick)
    assert concurrency.limit == 16


def test_a_machine_that_often_has_nothing_to_do_learns_from_the_time_when_it_does():
    """The worker waits for outcomes, and would wait less with several rollouts at once."""
    concurrency = Concurrency()
    made, now = 0.0, 0.0
    for _ in range(100):
        for running, seconds in ((concurrency.limit, 3.0), (0, 9.0)):
            concurrency.note(running, now)
            now += seconds
            made += seconds * 100 * min(running, 4)
            concurrency.note(0, now)
            concurrency.observe(int(made), 0.0, math.inf, now)
    assert concurrency.limit == 4


def test_an_engine_that_begins_anew_begins_a_new_window():
    """The token count fell to zero, which is no rate."""
    concurrency = Concurrency()
    made = 0.0
    for tick in range(1, 400):
        made = 0.0 if tick % 3 == 0 else made + 1000.0 * 5
        concurrency.note(1, 5.0 * tick)
        concurrency.observe(int(made), 0.0, math.inf, 5.0 * tick)
    assert concurrency.limit == 1
    assert not concurrency._rates
