import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.rollout.audit import SLASHABLE_REASONS, Past, decide
from protocol.rollout.fit import IMPROBABLE, Decided, Fit, Misfit, WorkerFit, fit_of
from protocol.rollout.statistics import (
    STATISTICS,
    Extremes,
    Measurement,
    Recomputed,
    Sums,
    disagreements_max,
)
from tests.worlds.messages import run_manifest
from tests.worlds.rounded import OTHER_MODEL, OTHER_PRECISION, ROUNDING, Judged, under

MANIFEST = run_manifest()
RULES = MANIFEST.toploc
OFF = frozenset({"sampling_gap"})


def sums(**means) -> Sums:
    """Return the sums of 1,000 tokens with these means of single statistics."""
    nothing = Sums(1000, 32)
    values = tuple(means.get(name, 0.0) * nothing.count(name) for name in STATISTICS)
    return Sums(1000, 32, values)


def rollouts(*reasons, **means) -> list[Decided]:
    return [Decided(reason == "accepted", reason, sums(**means)) for reason in reasons]


def of(**workers) -> dict[str, WorkerFit]:
    return {one.worker: one for one in fit_of(RULES, workers).workers}


# One worker


def test_who_is_off_in_no_statistic_fits_whatever_was_rejected():
    found = of(worker=rollouts("accepted", "accepted", "statistics"))
    assert found == {"worker": WorkerFit("worker", frozenset(), earned=True)}


def test_a_direction_is_a_statistic_and_its_sign():
    for value, name in ((1e-5, "logprob_shift"), (-1e-5, "-logprob_shift")):
        (found,) = of(one=rollouts("statistics", "history", logprob_shift=value)).values()
        assert found == WorkerFit("one", frozenset({name}), earned=False)


@pytest.mark.parametrize("reason", ["proofs", "logprobs", "sampling", "reward", "reward-history"])
def test_a_direction_is_a_limit_that_half_of_the_rollouts_exceed(reason):
    name = "reward" if reason == "reward-history" else reason
    assert of(one=rollouts(reason, "accepted"))["one"].directions == {name}
    assert of(one=rollouts(reason, "accepted", "accepted"))["one"].directions == frozenset()


def test_one_rollout_says_nothing_of_a_worker_nor_do_the_rollouts_of_a_liar():
    assert of(new=rollouts("statistics", sampling_gap=1.0)) == {}
    for lie in sorted(SLASHABLE_REASONS - IMPROBABLE):
        assert of(liar=rollouts("accepted", "accepted", lie)) == {}
    assert of(odd=rollouts("accepted", "accepted", "a reason that nobody knows")) == {}


def test_only_the_last_rollouts_count():
    old = rollouts(*["sampling"] * 100, sampling_gap=1e-5)
    good = rollouts(*["accepted"] * RULES.history_rollouts)
    assert of(one=[*old, *good])["one"].directions == frozenset()


# The run


def run(off: int, fits: int, *, earned: int = 0) -> Fit:
    workers = [WorkerFit(f"off {n}", OFF, earned=n < earned) for n in range(off)]
    return Fit((*workers, *(WorkerFit(f"fits {n}") for n in range(fits))))


@pytest.mark.parametrize(
    ("off", "fits", "earned", "doubtful", "ends"),
    [
        (1, 0, 0, False, False),  # alone: the wrong side is undecidable
        (1, 1, 1, False, True),
        (2, 0, 0, True, False),
        (2, 2, 0, True, False),
        (2, 3, 1, False, True),
        (2, 100, 2, True, False),  # two with honest work as well
        (50, 51, 1, False, True),  # invented keys must be half of all workers
        (50, 50, 0, True, False),
    ],
)
def test_thresholds_are_in_doubt_when_half_of_the_workers_or_two_with_work_are_off(
    off, fits, earned, doubtful, ends
):
    found = run(off, fits, earned=earned)
    assert found.misfits == ([Misfit("sampling_gap", off, off + fits)] if doubtful else [])
    assert found.ends("off 0", OFF) is ends
    if fits and doubtful:
        assert found.ends("off 0", frozenset({"mantissa_error"})), "another direction"


def test_workers_that_are_off_in_opposite_directions_speak_for_themselves():
    low, high = frozenset({"-logprob_shift"}), frozenset({"logprob_shift"})
    found = Fit((WorkerFit("low", low), WorkerFit("high", high), WorkerFit("fits")))
    assert found.misfits == []
    assert found.ends("low", low)


def test_a_misfit_is_told_in_one_line():
    (found,) = run(3, 1).misfits
    assert str(found).startswith("3 of 4 workers are beyond sampling_gap")
    assert "recalibrate" in str(found)
    assert "scoring runtimes" in str(Misfit("reward", 2, 2))


# Rewards


@given(st.floats(0, 1), st.integers(0, 40), st.floats(1e-15, 1e-3))
def test_the_disagreements_allowed_are_those_of_the_binomial_distribution(share, count, rate):
    most, chance = disagreements_max(share, count, rate), Fraction(share)

    def at_least(known: int) -> Fraction:
        return sum(
            math.comb(count, n) * chance**n * (1 - chance) ** (count - n)
            for n in range(known, count + 1)
        )

    assert at_least(most + 1) <= Fraction(rate)
    assert most == 0 or at_least(most) > Fraction(rate)


# Recorded engines under the thresholds of another model


def test_engines_under_their_own_thresholds_fit():
    found = Judged(under(ROUNDING), workers=3).judge(6)
    assert found.reasons == {"accepted"}
    fit = fit_of(found.manifest.toploc, found.decided)
    assert [one.directions for one in fit.workers] == [frozenset()] * 3


@pytest.mark.parametrize("thresholds", [OTHER_MODEL, OTHER_PRECISION])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_thresholds_of_another_model_reject_everybody_end_nobody_and_are_told(thresholds, workers):
    found = Judged(under(thresholds), workers).judge(8)
    assert found.reasons.isdisjoint(SLASHABLE_REASONS | {"accepted"})
    misfits = fit_of(found.manifest.toploc, found.decided).misfits
    most = [(one.workers, one.of) for one in misfits[:1]]
    assert most == ([(workers, workers)] if workers > 1 else [])


def test_the_one_worker_that_is_off_beside_others_is_ended():
    def distort(worker, own):
        if worker != "worker 2":
            return own
        return Recomputed(own.chunks, [one + 0.3 for one in own.logprobs], own.gaps)

    found = Judged(under(ROUNDING), 4, distort).judge(6)
    liar = [one.reason for one in found.findings.pop("worker 2")]
    assert liar == ["statistics"] * 3 + ["history"] * 3
    assert found.reasons == {"accepted"}


@pytest.mark.parametrize("thresholds", [ROUNDING, OTHER_MODEL, OTHER_PRECISION])
def test_states_of_something_else_are_a_lie_under_any_thresholds(thresholds):
    manifest = under(thresholds)
    wrong = Extremes(manifest.toploc.top_k, math.inf, math.inf, 0.0, 0.0)
    found = decide(manifest, [Measurement(None, sums(), wrong)], [0], Past("worker"))
    assert found.reason == "computation"
