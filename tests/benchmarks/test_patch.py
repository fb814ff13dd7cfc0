"""``benchmarks/shardcast/patch.py`` on a small model: its bars for size."""

import pytest

from benchmarks.shardcast import patch


@pytest.mark.long
def test_patches_are_near_their_entropy_and_far_below_pulse(tmp_path):
    rows = patch.run(tmp_path, layers=1, vocabulary=500, testnet_steps=0, rounds=1, rates=(3e-7,))
    assert [row.steps_apart for row in rows] == list(patch.STEPS_APART)
    for row in rows:
        assert 0 < row.changed_share < 0.3
        assert row.bound_ratio / 1.25 < row.ratio
        assert row.ratio > 1.3 * row.pulse_ratio
    first = rows[0]
    assert first.ratio > 200
