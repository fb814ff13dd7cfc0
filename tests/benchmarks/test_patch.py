"""``benchmarks/shardcast/patch.py`` on a small model: its bars for size, which no machine changes."""

from benchmarks.shardcast import patch


def test_patches_are_near_their_entropy_and_far_below_pulse(tmp_path):
    rows = patch.run(tmp_path, layers=1, vocabulary=500, testnet_steps=0)
    assert [(row.learning_rate, row.steps_apart) for row in rows] == [
        (rate, apart) for rate in patch.LEARNING_RATES for apart in patch.STEPS_APART
    ]
    for row in rows:
        assert 0 < row.changed_share < 0.3
        assert row.bound_ratio / 1.25 < row.ratio
        assert row.ratio > 1.3 * row.pulse_ratio
    first = rows[0]
    assert first.ratio > 200
