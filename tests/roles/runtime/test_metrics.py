"""Policy swap latency, from recorded times."""

from roles.runtime.metrics import UPTAKE_BOUNDS, UPTAKES_KEPT, PolicySwap, PolicySwapLatency


def test_the_stages_of_a_version_count_from_its_manifest():
    uptakes = PolicySwapLatency()
    assert (uptakes.newest, uptakes.median_seconds) == (None, None)
    uptakes.arrived(3, 102.0)
    uptakes.arrived(3, 103.0)  # a repeated call
    uptakes.arrived(2, 104.0)  # an older one arrived later
    uptakes.swapped(3, 100.0, 105.0)
    assert uptakes.newest == PolicySwap(3, 2.0, 5.0, None)
    assert uptakes.median_seconds is None
    uptakes.sampled(2, 0.1)  # reported late, of the one before
    uptakes.sampled(3, 0.5)
    uptakes.sampled(3, 0.7)  # reported repeatedly
    assert uptakes.newest == PolicySwap(3, 2.0, 5.0, 5.5)
    assert uptakes.median_seconds == uptakes.durations.seconds == 5.5


def test_the_histogram_counts_all_and_the_median_the_last_ones():
    uptakes = PolicySwapLatency()
    for version in range(UPTAKES_KEPT + 10):
        uptakes.arrived(version, 0.0)
        uptakes.swapped(version, 0.0, 10.0 if version < 10 else 0.0)
        uptakes.sampled(version, UPTAKE_BOUNDS[1])
    assert uptakes.median_seconds == UPTAKE_BOUNDS[1]
    assert uptakes.durations.counts[1] == UPTAKES_KEPT  # a bound includes the values below it
    assert sum(uptakes.durations.counts) == UPTAKES_KEPT + 10
    uptakes.swapped(99, 0.0, 1e9)
    uptakes.sampled(99, 0.0)
    assert uptakes.durations.counts[-1] == 1
