from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import WITNESSES
from protocol.rollout.agreement import (
    CERTAIN_REASONS,
    DISAGREEMENT_RATE,
    WITNESS_SIGMAS,
    Agreement,
    differing,
)
from tests.worlds.messages import run_manifest, verdict_of

LIMITS = Agreement(witness_sum_max=1000, replays_max=2)
COMMIT, PAGE = bytes(32), bytes(32)


def verdict(reason="accepted", **fields):
    return verdict_of(COMMIT, PAGE, reason, **fields)


def moved(by, replays=0, reason="accepted"):
    """Return a verdict whose witness values are off by numbers, and that many replays."""
    known = verdict(reason)
    witness = tuple(ours + by.get(place, 0) for place, ours in enumerate(known.witness))
    changed = tuple(own + (place < replays) for place, own in enumerate(known.replays))
    return known.model_copy(update={"witness": witness, "replays": changed})


@pytest.mark.parametrize(
    ("by", "replays", "agrees"),
    [
        ({}, 0, True),
        ({0: 1000}, 2, True),
        ({0: 500, 7: -500}, 0, True),
        ({0: 1001}, 0, False),
        ({0: 501, 7: -500}, 0, False),
        ({}, 3, False),
    ],
)
def test_the_sum_of_differences_and_the_number_of_replays_count(by, replays, agrees):
    one, other = verdict(), moved(by, replays)
    assert LIMITS.agrees(one, other) is LIMITS.agrees(other, one) is agrees
    assert LIMITS.contradicts(one, other) is LIMITS.contradicts(other, one) is not agrees


@pytest.mark.parametrize(
    ("one", "other", "agrees"),
    [
        ("format", "format", True),
        ("format", "termination", False),
        ("format", "proofs", False),
        ("reward-history", "reward", True),
        ("reward-history", "statistics", False),
        ("proofs", "statistics", True),
    ],
)
def test_without_witness_values_the_reasons_decide(one, other, agrees):
    assert LIMITS.agrees(verdict(one), verdict(other)) is agrees
    assert not LIMITS.contradicts(verdict(one), verdict(other)), "both reject"


@pytest.mark.parametrize(
    "reason",
    ["format", "termination", "computation", "history", "reward-history", "reward", "statistics"],
)
def test_only_a_certain_rejection_contradicts_an_acceptance(reason):
    certain = reason in {"format", "termination", "computation"}
    assert (reason in CERTAIN_REASONS) is certain
    for pair in ((verdict(), verdict(reason)), (verdict(reason), verdict())):
        assert LIMITS.contradicts(*pair) is certain


def test_other_values_contradict_whatever_the_results_are():
    for reason in ("accepted", "statistics", "computation"):
        assert LIMITS.contradicts(verdict(), moved({3: 1001}, reason=reason))


def test_the_limits_follow_from_the_calibration():
    rules = run_manifest().toploc
    limits = Agreement.of(rules)
    assert limits.witness_sum_max == int(
        WITNESS_SIGMAS * WITNESSES * Fraction(rules.gap_sigma) * 10**9
    )
    assert limits.witness_sum_max / 1e9 / WITNESSES == pytest.approx(8e-6, abs=1e-9)


@given(st.floats(0, 1))
def test_the_limit_of_replays_is_the_smallest_with_its_rate(share):
    rules = run_manifest().toploc
    replay = rules.honest.replay_mismatches.model_copy(update={"mean": share})
    honest = rules.honest.model_copy(update={"replay_mismatches": replay})
    most = Agreement.of(rules.model_copy(update={"honest": honest})).replays_max

    def beyond(count):
        chance = Fraction(share)
        return sum(
            comb(WITNESSES, one) * chance**one * (1 - chance) ** (WITNESSES - one)
            for one in range(count + 1, WITNESSES + 1)
        )

    assert beyond(most) <= Fraction(DISAGREEMENT_RATE)
    assert most == 0 or beyond(most - 1) > Fraction(DISAGREEMENT_RATE)


def test_a_mean_above_one_allows_every_replay():
    """A calibration multiplies the measured share by its margin."""
    rules = run_manifest().toploc
    replay = rules.honest.replay_mismatches.model_copy(update={"mean": 1.2})
    honest = rules.honest.model_copy(update={"replay_mismatches": replay})
    other = rules.model_copy(update={"honest": honest})
    assert Agreement.of(other).replays_max == WITNESSES


def test_differing_places_are_counted():
    assert differing((1, 2, 3), (1, 3, 2)) == 2
    with pytest.raises(ValueError, match="zip"):
        differing((1,), (1, 2))
