import numpy as np
import pytest

from node.founding.recipes import toploc_toml
from protocol.rollout.statistics import STATISTICS, bound
from protocol.run.toml import load_recipe
from roles.engines.calibration.calibrate import kept
from roles.engines.calibration.power import TOKENS, power
from roles.engines.calibration.proposal import propose
from tests.roles.engines.calibration.recordings import LAYOUT, drawn
from tests.worlds.messages import RECIPE

HONEST = [drawn(seed=seed, name=f"pair {seed}") for seed in range(4)]


def proposed(recordings=HONEST, margin=1.0):
    return propose(recordings, LAYOUT, "numbers that were drawn", margin)


def test_what_was_drawn_comes_out():
    rules = proposed()
    assert rules.measured_tokens == 4 * 64 * 256
    assert rules.gap_sigma == pytest.approx(0.01, rel=0.03)
    assert rules.logprob_tau == pytest.approx(2.576 * 0.01, rel=0.03)  # 99 % of a Gaussian
    mismatches = rules.honest.replay_mismatches
    assert 0.02 < mismatches.mean < 0.026  # the largest of four pairs, three standard errors up
    assert mismatches.variance == pytest.approx(0.02 * 0.98, rel=0.2)
    assert mismatches.clip == 1
    error = rules.honest.logprob_error
    assert error.clip < 0.06
    assert error.mean == pytest.approx(0.01 * np.sqrt(2 / np.pi), rel=0.05)
    assert rules.honest.logprob_shift.mean < 5e-4
    assert rules.logprob_error_max > 2 * 0.035


def test_no_honest_rollout_is_rejected():
    rules = proposed()
    for recording in (*HONEST, drawn(seed=99)):
        assert max(power(rules, recording, np.random.default_rng(1)).rejected) == 0


@pytest.mark.parametrize(
    ("lie", "until_tokens"),
    [
        ({"shift": -0.02}, 128),
        ({"shift": 0.005}, 1024),
        ({"sigma": 0.02}, 512),
        ({"flips": 0.1}, 2048),
    ],
)
def test_what_is_off_in_the_mean_is_caught_with_enough_tokens(lie, until_tokens):
    found = power(proposed(), drawn(seed=7, **lie), np.random.default_rng(1))
    assert found.tokens_until(0.99) <= until_tokens
    assert list(found.rejected) == sorted(found.rejected)
    assert found.rejected[-1] == 1


def test_what_is_never_caught_says_so():
    found = power(proposed(), drawn(seed=7), np.random.default_rng(1))
    assert found.tokens_until(0.5) is None
    assert len(found.rejected) == len(TOKENS)


def test_a_single_value_far_off_is_caught_at_once():
    recording = drawn(seed=7, sequences=4)
    recording.claimed[0][5] -= 1.0
    found = power(proposed(), recording, np.random.default_rng(1))
    assert found.reasons[-1] == "logprob_error_max"


def test_the_errors_of_one_sequence_may_depend_on_each_other():
    """Sequences with a common offset widen the variance: tokens are not independent."""
    alone = proposed([drawn(seed=1), drawn(seed=2)])
    rng = np.random.default_rng(3)
    together = drawn(seed=1)
    for claimed in together.claimed:
        claimed[:] = (np.array(claimed) + rng.normal(0, 0.003)).tolist()
    dependent = proposed([together, drawn(seed=2)])
    assert dependent.honest.logprob_shift.variance > 5 * alone.honest.logprob_shift.variance


def test_a_margin_makes_errors_larger_and_what_is_counted_more_frequent():
    plain, wide = proposed().honest, proposed(margin=2.0).honest
    for name in STATISTICS:
        before, after = getattr(plain, name), getattr(wide, name)
        ratio = bound(after, 1000, 1e-6) / bound(before, 1000, 1e-6)
        assert 1.3 < ratio < 2.3, name
    assert wide.logprob_error.clip == pytest.approx(2 * plain.logprob_error.clip, rel=0.02)
    assert wide.replay_mismatches.clip == 1
    assert wide.replay_mismatches.mean == pytest.approx(2 * plain.replay_mismatches.mean, rel=0.02)


def test_the_worst_pair_counts_unless_it_is_too_small_to_have_a_mean():
    worse = drawn(seed=5, sigma=0.02)
    assert proposed([*HONEST, worse]).honest.logprob_error.mean > 0.014
    few = drawn(seed=5, sequences=1, tokens=64, flips=0.2)
    more = [drawn(seed=seed, sequences=2, tokens=256) for seed in range(10, 20)]
    assert proposed([*HONEST, few, *more]).honest.replay_mismatches.mean < 0.04


def test_engines_that_agree_to_the_bit_leave_room_for_the_last_place():
    rules = proposed([drawn(sigma=0.0, flips=0.0)])
    assert 0 < rules.logprob_tau < 1e-6
    assert rules.honest.replay_mismatches.variance > 0


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="1000 honest tokens are too few"):
        proposed([drawn(sequences=10, tokens=100)])


def test_the_proposal_is_a_section_of_a_recipe():
    text = RECIPE.read_text()
    recipe = load_recipe(text)
    rules = propose(HONEST, kept(recipe) | {"chunk_tokens": 32}, 'a "machine"\\', 1.0)
    start, end = text.index("[toploc]"), text.index("[committee]")
    again = load_recipe(text[:start] + toploc_toml(rules) + "\n" + text[end:])
    assert again.toploc == rules
    assert kept(again) == kept(recipe)
