"""Policy swap latency, from recorded times."""

from roles.runtime.metrics import SWAP_BOUNDS, SWAPS_KEPT, PolicySwap, PolicySwapLatency


def test_the_stages_of_a_version_count_from_its_manifest():
    policy_swaps = PolicySwapLatency()
    assert (policy_swaps.newest, policy_swaps.median_seconds) == (None, None)
    policy_swaps.arrived(3, 102.0)
    policy_swaps.arrived(3, 103.0)  # a repeated call
    policy_swaps.arrived(2, 104.0)  # an older one arrived later
    policy_swaps.swapped(3, 100.0, 105.0)
    assert policy_swaps.newest == PolicySwap(3, 2.0, 5.0, None)
    assert policy_swaps.median_seconds is None
    policy_swaps.sampled(2, 0.1)  # reported late, of the one before
    policy_swaps.sampled(3, 0.5)
    policy_swaps.sampled(3, 0.7)  # reported repeatedly
    assert policy_swaps.newest == PolicySwap(3, 2.0, 5.0, 5.5)
    assert policy_swaps.median_seconds == policy_swaps.durations.seconds == 5.5


def test_the_histogram_counts_all_and_the_median_the_last_ones():
    policy_swaps = PolicySwapLatency()
    for version in range(SWAPS_KEPT + 10):
        policy_swaps.arrived(version, 0.0)
        policy_swaps.swapped(version, 0.0, 10.0 if version < 10 else 0.0)
        policy_swaps.sampled(version, SWAP_BOUNDS[1])
    assert policy_swaps.median_seconds == SWAP_BOUNDS[1]
    assert policy_swaps.durations.counts[1] == SWAPS_KEPT  # a bound includes the values below it
    assert sum(policy_swaps.durations.counts) == SWAPS_KEPT + 10
    policy_swaps.swapped(99, 0.0, 1e9)
    policy_swaps.sampled(99, 0.0)
    assert policy_swaps.durations.counts[-1] == 1
