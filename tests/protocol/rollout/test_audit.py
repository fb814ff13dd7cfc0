import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import digest
from protocol.messages import WITNESSES
from protocol.rollout.audit import (
    ACCEPTED,
    HISTORY_ROLLOUTS_MIN,
    SLASHABLE_REASONS,
    Past,
    audited,
    check_claims,
    check_rewards,
    decide,
)
from protocol.rollout.body import RolloutSequence
from protocol.rollout.fit import Decided, Fit, WorkerFit
from protocol.rollout.statistics import (
    STATISTICS,
    Extremes,
    Measurement,
    Recomputed,
    Sums,
    measured,
    unmeasured,
)
from protocol.rollout.witness import WitnessValue
from protocol.toploc import ChunkResult
from tests.worlds.messages import World, run_manifest

MANIFEST = run_manifest()
RULES = MANIFEST.toploc
TOKENS_MAX = MANIFEST.sampling.tokens_max
WORLD = World(MANIFEST)
COMMIT = WORLD.commit(WORLD.workers[0], tokens=3 + TOKENS_MAX)
ENDED = RolloutSequence((5, 6, 1), (-1.0,) * 3, 100, ())
FULL = RolloutSequence((5,) * TOKENS_MAX, (-1.0,) * TOKENS_MAX, 200, ())
NAN, INFINITE = math.nan, math.inf
ERRORS = st.floats(0, 1e300) | st.sampled_from([NAN, INFINITE])
FLAWLESS = Measurement(None, Sums(100, 4), Extremes(0, 0, 0, 0, 0))


GOOD = ChunkResult(0, 1.0, 1.0)


def of(chunk=GOOD, error=0.0, gap=0.0) -> Measurement:
    """Return a measurement of one sequence whose second token is off."""
    own = Recomputed([chunk], [-1.0, -1.0 + error, -1.0], [0.0, gap, 0.0])
    return measured(RULES, [-1.0] * 3, own)


def shifted(name, mean, tokens=1000, chunks=32) -> Measurement:
    """Return a measurement that is off in one statistic."""
    sums = Sums(tokens, chunks, (0.0,) * len(STATISTICS))
    values = [mean * sums.count(own) if own == name else 0.0 for own in STATISTICS]
    return replace(FLAWLESS, sums=replace(sums, values=tuple(values)))


def decided(*measurements, claims=None, history=(), past=None, rewards=None):
    past = Past.of(history) if past is None else past
    claims = claims or range(len(measurements))
    return decide(MANIFEST, measurements, claims, past, rewards)


# Selection of measured sequences


def audits(group_size, **shares):
    return run_manifest(sampling={"group_size": group_size}, toploc=shares)


@given(
    st.integers(1, 20),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.floats(0, 1),
    st.floats(0, 1),
    st.binary(max_size=4),
)
def test_of_each_group_some_are_audited_by_its_kind(size, uniform, share, uniform_share, seed):
    manifest = audits(size, audit_share=share, uniform_audit_share=uniform_share)
    rewards = [1 if is_uniform or index else 0 for is_uniform in uniform for index in range(size)]
    chosen = audited(manifest, seed, rewards)
    assert chosen == sorted(set(chosen))
    for place, is_uniform in enumerate(uniform):
        ours = [index for index in chosen if index // size == place]
        expected = uniform_share if is_uniform or size == 1 else share
        assert len(ours) == max(1, math.ceil(size * expected))


def test_the_lot_chooses_the_audited():
    manifest = audits(100, audit_share=0.1)
    rewards = [0, *[1] * 99]
    choices = {tuple(audited(manifest, digest(lot), rewards)) for lot in (b"1", b"2", b"3")}
    assert len(choices) == 3


def test_every_sequence_is_audited_equally_often():
    manifest = audits(8, uniform_audit_share=0.25)
    chosen = [audited(manifest, digest(bytes([n])), [1] * 16) for n in range(200)]
    for index in range(16):
        assert abs(sum(index in some for some in chosen) - 50) < 31  # five standard deviations


# Checks without a model


@pytest.mark.parametrize(
    ("sequences", "reason"),
    [
        ([ENDED, FULL], None),
        ([ENDED, ENDED], "format"),  # six tokens where eleven were promised
        ([RolloutSequence((32, 6, 1), (), 100, ()), FULL], "format"),
        ([RolloutSequence((-1, 6, 1), (), 100, ()), FULL], "format"),
        ([RolloutSequence((1, 6, 1), (), 100, ()), FULL], "format"),
        ([RolloutSequence((5, 6, 7), (), 100, ()), FULL], "termination"),
    ],
)
def test_claims(sequences, reason):
    finding = check_claims(MANIFEST, COMMIT.message, sequences)
    assert reason == (finding and finding.reason)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [((5, 6, 7), None), ((5, 6, 1), None), ((5, 7, 1), "format"), ((5, 1, 7), "format")],
)
def test_any_of_several_end_tokens_ends_a_sequence_and_all_end_it(tokens, reason):
    config = MANIFEST.model.config | {"eos_token_id": (7, 1)}
    model = MANIFEST.model.model_copy(update={"config": config})
    manifest = MANIFEST.model_copy(update={"model": model})
    sequences = [RolloutSequence(tokens, (), 100, ()), FULL]
    finding = check_claims(manifest, COMMIT.message, sequences)
    assert reason == (finding and finding.reason)


def test_a_full_sequence_may_end_on_its_last_token():
    ended = RolloutSequence((*FULL.tokens[:-1], 1), FULL.logprobs, 200, ())
    assert check_claims(MANIFEST, COMMIT.message, [ENDED, ended]) is None


# Single values


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (unmeasured("count of chunk 0"), "format"),
        (of(ChunkResult(5, 1.0, 1.0)), "proofs"),
        (of(ChunkResult(0, 33.0, 1.0)), "proofs"),
        (of(ChunkResult(0, 1.0, 33.0)), "proofs"),
        (of(ChunkResult(0, NAN, 1.0)), "proofs"),
        (of(ChunkResult(0, 1.0, NAN)), "proofs"),
        (of(ChunkResult(0, INFINITE, INFINITE)), "proofs"),
        (of(ChunkResult(RULES.top_k, INFINITE, INFINITE)), "proofs"),
        (of(error=2e-3), "logprobs"),
        (of(error=-2e-3), "logprobs"),
        (of(error=INFINITE), "logprobs"),
        (of(error=NAN), "logprobs"),
        (of(gap=2e-3), "sampling"),
        (of(gap=INFINITE), "sampling"),
        (of(gap=NAN), "sampling"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_sequence_is_found_wherever_it_stands(bad, reason, place):
    measurements = [of()] * 3
    measurements[place] = bad
    finding = decided(*measurements)
    assert not finding.accept
    assert finding.reason == reason


def test_only_what_cannot_be_an_accident_is_a_lie():
    assert {
        "format",
        "termination",
        "computation",
        "history",
        "reward-history",
    } == SLASHABLE_REASONS
    assert decided(of()).reason == ACCEPTED


LEAST = int(0.75 * RULES.top_k) + 1
"""Exponents of a chunk that differ between unrelated states."""


@pytest.mark.parametrize(
    ("mismatches", "bad", "reason"),
    [
        (RULES.exponent_mismatches_max, 3, ACCEPTED),
        (RULES.exponent_mismatches_max + 1, 3, "proofs"),
        (LEAST - 1, 3, "proofs"),  # another kernel, a quantised cache, the step before
        (LEAST, 1, "proofs"),  # a bit that fell over in one sequence
        (LEAST, 2, "computation"),
        (RULES.top_k, 3, "computation"),
    ],
)
def test_only_states_of_something_else_in_most_sequences_are_a_lie_at_once(mismatches, bad, reason):
    wrong, right = replace(FLAWLESS, extremes=Extremes(mismatches, 0, 0, 0, 0)), FLAWLESS
    assert decided(*[wrong] * bad, *[right] * (3 - bad)).reason == reason


# Rewards


def rewarded(*claimed) -> list[RolloutSequence]:
    return [replace(ENDED, reward=reward) for reward in claimed]


def outcomes(*reasons) -> list[Decided]:
    return [Decided(reason == ACCEPTED, reason, FLAWLESS.sums) for reason in reasons]


OFF = frozenset({"reward"})


def compared(claimed, own, *reasons, others=1, alike=0, **credit):
    """Compare rewards with ``others`` workers that fit and ``alike`` ones that are off."""
    manifest = run_manifest(credit=credit) if credit else MANIFEST
    workers = [WorkerFit(f"fits {n}") for n in range(others)]
    workers += [WorkerFit(f"off {n}", OFF) for n in range(alike)]
    past = Past("worker", outcomes(*reasons), Fit((WorkerFit("worker", OFF), *workers)))
    return check_rewards(manifest, rewarded(*claimed), own, past)


def test_equal_rewards_are_no_finding():
    assert compared([0, 100, 0], [0, 100, 0]) is None


@pytest.mark.parametrize("own", [[0, 100, 1], [1, 99, 1]])
def test_rewards_that_differ_reject_a_rollout_that_is_exact_otherwise(own):
    found = compared([0, 100, 0], own)
    assert (found.reason, found.accept) == ("reward", False)
    assert ("3 of 3 differ" in found.detail) == (own[0] == 1)
    finding = decided(FLAWLESS, rewards=found)
    assert (finding.reason, finding.detail) == ("reward", found.detail)
    assert finding.sums == FLAWLESS.sums, "what was measured is stated as ever"


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (unmeasured("count of chunk 0"), "format"),
        (replace(FLAWLESS, extremes=Extremes(RULES.top_k, 0, 0, 0, 0)), "computation"),
        (of(gap=1.0), "sampling"),
    ],
)
def test_what_else_is_wrong_is_said_instead_of_rewards(measurement, reason):
    assert decided(measurement, rewards=compared([0], [1])).reason == reason


def test_more_disagreements_than_honest_machines_have_are_a_lie():
    """Rate one in a thousand: five in a row, or seven of the last 64."""
    reasons = [compared([0], [1], *["reward"] * count).reason for count in range(6)]
    assert reasons == ["reward"] * 4 + ["reward-history"] * 2
    for before, reason in ((5, "reward"), (6, "reward-history")):
        good = [ACCEPTED] * (RULES.history_rollouts - 1 - before)
        for last in ([*good, *["reward"] * before], [*["reward"] * before, *good]):
            assert compared([0], [1], *last).reason == reason
            assert compared([0], [1], "reward", *last).reason == reason, "one too old to count"


def test_the_manifest_says_how_often_honest_rewards_differ():
    often = {"reward_disagreement_rate": 0.1}
    assert compared([0], [1], *["reward-history"] * 6, **often).reason == "reward"
    assert compared([0], [1], reward_disagreement_rate=0.0).reason == "reward-history"


def test_a_worker_is_not_ended_where_others_disagree_as_well_or_nobody_else_is_there():
    many = ["reward"] * 20
    for others, alike, reason in (
        (0, 0, "reward"),
        (0, 3, "reward"),
        (2, 1, "reward"),  # two of four
        (3, 1, "reward-history"),
        (1, 0, "reward-history"),
    ):
        assert compared([0], [1], *many, others=others, alike=alike).reason == reason


# Statistics of one rollout and of many


@pytest.mark.parametrize("name", STATISTICS)
def test_an_average_beyond_the_honest_one_rejects_the_rollout(name):
    honest = getattr(RULES.honest, name)
    assert decided(shifted(name, honest.mean)).accept
    finding = decided(FLAWLESS, shifted(name, honest.clip))
    assert finding.reason == "statistics"
    assert finding.detail.startswith(name)


def test_one_tie_that_all_equal_answers_have_is_one_deviation():
    """A near tie among the largest values had caused a rejection of equal answers."""
    tie = of(ChunkResult(3, 1.0, 1.0))
    group, others = [tie] * 16, [of()] * 48
    different = decided(*group, *others)
    assert different.reason == "statistics"
    assert different.detail.startswith("exponent_mismatches")
    assert decided(*group, *others, claims=["equal"] * 16 + [*range(48)]).accept


def test_no_equal_answer_hides_a_bad_one():
    good, bad = of(), of(ChunkResult(MANIFEST.toploc.exponent_mismatches_max + 1, 1.0, 1.0))
    for group in ([bad, good, good], [good, good, bad]):
        assert decided(*group, claims=["equal"] * 3).reason == "proofs"
    drawn = [of(gap=9e-4)] * 16  # allowed for a single one, and never honest 16 times
    assert decided(*drawn, claims=["equal"] * 16).reason == "statistics"


def test_the_shift_counts_either_way():
    clip = RULES.honest.logprob_shift.clip
    assert decided(shifted("logprob_shift", -clip)).reason == "statistics"


def test_what_one_rollout_may_be_off_many_may_not():
    """A worker that uses up the bound of each rollout is caught over its last ones."""
    off = shifted("sampling_gap", 3e-7)
    assert decided(off).accept
    reasons = [decided(off, history=[off.sums] * count).reason for count in range(40)]
    few = HISTORY_ROLLOUTS_MIN - 1
    assert reasons[:few] == [ACCEPTED] * few
    assert reasons[-1] == "history"


def test_few_rollouts_are_no_history_however_bad():
    off = shifted("sampling_gap", RULES.honest.sampling_gap.clip)
    few = [off.sums] * (HISTORY_ROLLOUTS_MIN - 2)
    assert decided(off, history=few).reason == "statistics"
    assert decided(off, history=[*few, off.sums]).reason == "history"


def test_a_history_ends_nobody_while_the_thresholds_are_in_doubt():
    off = shifted("sampling_gap", 3e-7)
    rollouts = [Decided(accepted=True, reason=ACCEPTED, measured=off.sums)] * 30
    alike = WorkerFit("other", frozenset({"sampling_gap"}))
    elsewhere = WorkerFit("other", frozenset({"mantissa_error"}))
    me, fits = WorkerFit("worker", frozenset({"sampling_gap"})), WorkerFit("third")
    for others, reason in (
        ((), "statistics"),
        ((alike,), "statistics"),
        ((alike, fits), "statistics"),
        ((elsewhere, fits), "history"),
        ((fits,), "history"),
    ):
        past = Past("worker", rollouts, Fit((me, *others)))
        finding = decided(off, past=past)
        assert (finding.reason, finding.accept) == (reason, False)
        assert "over 31 rollouts" in finding.detail


def test_only_the_last_rollouts_are_judged_together():
    off = shifted("sampling_gap", 3e-7)
    old = [off.sums] * 40
    good = [FLAWLESS.sums] * (RULES.history_rollouts - 1)
    assert decided(FLAWLESS, history=[*old, *good[1:]]).accept
    assert decided(FLAWLESS, history=[*good, *old]).reason == "history"


def test_history_is_looked_at_before_what_costs_a_rollout_alone():
    off = shifted("sampling_gap", RULES.honest.sampling_gap.clip)
    beyond = replace(off, extremes=Extremes(0, 0, 0, 0, 1.0))
    assert decided(beyond).reason == "sampling"
    assert decided(beyond, history=[off.sums] * 5).reason == "history"


# Verdicts


def stated(finding):
    """Return the verdict of a finding, with witness values if something was measured."""
    values = [WitnessValue(-0.5 * place, 7 + place) for place in range(WITNESSES)]
    witness = () if finding.sums is None else tuple(values)
    return replace(finding, witness=witness).verdict(COMMIT.digest, digest(b"page"), bytes(32))


@given(
    st.lists(
        st.builds(
            of,
            error=st.floats(),
            gap=st.floats(),
            chunk=st.builds(ChunkResult, st.integers(0, 128), ERRORS, ERRORS),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_measurement_becomes_a_verdict_that_can_be_signed(measurements):
    finding = decided(*measurements)
    worst = [max(column) for column in zip(*(item.extremes for item in measurements), strict=True)]
    outside = any(
        value > limit for value, limit in zip(worst, (4, 32, 32, 1e-3, 1e-3), strict=True)
    )
    assert not (outside and finding.accept)
    verdict = WORLD.sealed(stated(finding), WORLD.validators[0]).message
    assert verdict.accept == finding.accept
    assert len(verdict.means) == len(STATISTICS)
    assert len(verdict.extremes) == 5
    assert verdict.chunks == len(measurements)


def test_a_verdict_states_billionths_and_cuts_what_is_huge():
    verdict = stated(decided(of(error=5e-4), of(gap=INFINITE)))
    assert verdict.extremes == (0, 10**9, 10**9, pytest.approx(500_000, abs=1), 2**53)
    assert verdict.means[STATISTICS.index("replay_mismatches")] == round(1e9 / 6)
    assert verdict.witness == tuple(-5 * 10**8 * place for place in range(WITNESSES))
    assert verdict.replays == tuple(range(7, 7 + WITNESSES))
    assert (verdict.page, verdict.nonce) == (digest(b"page"), bytes(32))


def test_what_was_not_measured_states_nothing():
    verdict = stated(decided(of(), unmeasured("count of chunk 0")))
    assert (verdict.reason, verdict.chunks, verdict.means, verdict.extremes) == (
        "format",
        0,
        (),
        (),
    )
    assert (verdict.witness, verdict.replays) == ((), ())
    assert "sequence 1" in verdict.detail
