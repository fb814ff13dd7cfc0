"""Numbers on traces with known results."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.checkers.swarm import TracedNode
from simulations.metrics.makespan import ideal_seconds, round_trips_least
from simulations.metrics.numbers import SETTLE_EPOCHS, RunMeter, quantile, rounded
from simulations.metrics.series import POINTS_MAX
from simulations.metrics.spread import CLOSE_SECONDS, SpreadHistogram
from tests.simulations.trace_examples import LED_EPOCH, small_run

KEYS = {
    "plan",
    "scenario",
    "seed",
    "nodes",
    "virtual_s",
    "wall_s",
    "events",
    "trace_digest",
    "rollouts",
    "certified_false",
    "contradictory_certificates",
    "conflicting_final_pages",
    "final_gap_epochs_p50",
    "final_gap_epochs_p99",
    "ledger",
    "committee_agreement",
    "gossip",
    "weights",
    "trainer_idle_share",
    "versions_published",
    "peak_rss_mb",
    "violations",
}
VALIDATORS = ("validator-0", "validator-1", "validator-2")


def measured_run(**options):
    run = small_run(**options)
    run.meter = RunMeter(run.watch, run.checkers, 0.1)
    return run


def result(run):
    run.watch.finish(run.now)
    return run.meter.result(
        {"scenario": "small", "seed": 7},
        nodes=7,
        wall_s=1.0,
        events=10,
        trace_digest="d",
        peak_rss_mb=100,
    )


def test_the_result_of_a_run_has_the_agreed_keys_and_is_json():
    run = measured_run()
    run.wait(2)
    values = json.loads(json.dumps(result(run).to_json(), allow_nan=False))
    assert set(values) == KEYS
    assert set(values["rollouts"]) == {"committed", "certified", "rejected", "expired", "lost"}
    assert set(values["ledger"]) == {
        "rollouts",
        "tokens",
        "checks",
        "slashed",
        "behind_epochs_p99",
    }
    assert set(values["gossip"]) == {
        "coverage_p50_s",
        "coverage_p99_s",
        "duplicates_per_message",
    }
    assert set(values["weights"]) == {
        "versions",
        "makespan_ratio_p50",
        "makespan_ratio_p99",
        "makespan_seconds_p50",
        "round_trips_p50",
        "round_trips_least",
        "bytes_per_node",
    }
    assert values["virtual_s"] == 4.0
    assert values["nodes"] == 7


def test_a_violation_is_part_of_the_result():
    run = measured_run()
    run.certified("liar")
    values = result(run).to_json()
    assert values["certified_false"] == 1
    (violation,) = values["violations"]
    assert violation["rule"] == "no-false-rollout-certified"
    assert violation["causes"]


def test_rollouts_are_counted_by_what_became_of_them():
    run = measured_run()
    run.certified("worker-0")
    commit = run.commit("liar", version=1)
    run.spread(commit, *VALIDATORS)
    run.spread(run.certificate(VALIDATORS[:2], commit, accepted=False, escalated=True))
    run.spread(run.commit("worker-0", slot=1, version=2))
    run.spread(run.commit("liar", slot=1, version=2))
    run.wait(12)
    run.spread(run.commit("worker-0", slot=2, version=3))
    counts = result(run).rollouts
    assert counts.committed == 5
    assert (counts.certified, counts.rejected, counts.expired) == (1, 1, 2)
    assert counts.lost == 1, "an honest one expired; the newest may still be certified"


def test_committees_agree_as_far_as_most_nodes_draw_the_same():
    run = measured_run()
    assert result(run).committee_agreement is None
    for node in ("relay", "trainer", "worker-0"):
        run.emit(node, "committee", commit=b"a" * 32, members="x,y")
    run.emit("validator-0", "committee", commit=b"a" * 32, members="x,z")
    run.emit("relay", "committee", commit=b"b" * 32, members="x,z")
    assert result(run).committee_agreement == 0.75


EVERYONE_BUT_THE_RELAY = ("trainer", "worker-0", "liar", *VALIDATORS)


def gossiped(run, *nodes, seconds=0.1):
    """Let the relay publish a message that ``nodes`` receive one after another."""
    run.emit("relay", "gossip-published", topic="commits", id=str(run.now))
    message_id = str(run.now)
    for node in nodes:
        run.now += seconds
        run.emit(node, "gossip-first", topic="commits", id=message_id)


def test_gossip_is_measured_over_messages_and_nodes():
    run = measured_run()
    run.wait(6)
    gossiped(run, *EVERYONE_BUT_THE_RELAY[:5])
    for received, duplicates in ((1, 2), (2, 6)):
        for node in ("trainer", "worker-0"):
            run.emit(node, "sample", gossip_received=received, gossip_duplicates=duplicates)
    run.wait(CLOSE_SECONDS)
    gossip = result(run).gossip
    assert gossip.coverage_p50_s == pytest.approx(0.3, rel=0.02)
    assert gossip.coverage_p99_s is None  # one of six never received it
    assert gossip.duplicates_per_message == 3.0


def test_a_node_that_restarts_counts_anew():
    run = measured_run()
    run.emit("relay", "sample", gossip_received=10, gossip_duplicates=20, weights_received=70)
    run.down("relay")
    run.up("relay")
    run.emit("relay", "sample", gossip_received=10, gossip_duplicates=0, weights_received=70)
    assert result(run).gossip.duplicates_per_message == 1.0
    assert result(run).weights.bytes_per_node == 20  # 140 in all, seven nodes


def test_what_is_no_news_to_most_is_not_missed():
    run = measured_run()
    run.wait(6)
    gossiped(run, "trainer", "worker-0")
    run.wait(CLOSE_SECONDS)
    assert result(run).gossip.coverage_p50_s is None
    assert run.meter._spread.delays.count == 0


def test_who_came_after_a_message_was_published_does_not_make_it_late():
    """The late node first has to find peers, however fast the others were."""
    run = measured_run()
    run.wait(6)
    message_id = str(run.now)
    gossiped(run, *EVERYONE_BUT_THE_RELAY[:5])
    run.down("validator-2")
    run.wait(1)
    run.up("validator-2")
    run.emit("validator-2", "gossip-first", topic="commits", id=message_id)
    run.wait(CLOSE_SECONDS)
    assert result(run).gossip.coverage_p99_s == pytest.approx(0.5, rel=0.02)


def test_who_is_new_or_has_gone_is_not_missed_by_gossip():
    run = measured_run()
    run.down("validator-2")
    run.wait(CLOSE_SECONDS)
    run.up("validator-2")
    gossiped(run, *EVERYONE_BUT_THE_RELAY[1:5])
    run.wait(2)
    run.down("trainer")
    run.wait(CLOSE_SECONDS)
    assert result(run).gossip.coverage_p99_s == pytest.approx(0.4, rel=0.02)


def test_the_makespan_of_a_version_ends_with_the_last_node_that_was_there():
    run = measured_run()
    run.wait(1)
    manifest = run.checkpoint(1, run.genesis)
    run.stored(manifest, "trainer")
    for node in ("relay", "worker-0", "validator-0", "validator-1"):
        run.now += 1
        run.emit(node, "weights", version=1, seconds=1.0, bytes=4_000_000)
        run.emit(node, "sample", weights_received=3_500_000)
    run.down("validator-2")
    weights = result(run).weights
    # 4 MB on a line of 1 MB/s take 4 s, and 5 nodes need 20 MB of all nodes' 6 MB/s.
    assert weights.versions == 1
    assert weights.makespan_ratio_p50 == pytest.approx(4.0 / 4.0)
    assert (weights.makespan_seconds_p50, weights.round_trips_p50) == (4.0, 0.0)
    assert weights.round_trips_least == round_trips_least(5, 4) == 10
    assert weights.bytes_per_node == 2_000_000


def test_a_version_is_at_work_before_the_relays_have_it():
    run = measured_run()
    run.stored(run.checkpoint(1, run.genesis), "trainer")
    for node in ("worker-0", *VALIDATORS, "relay"):
        run.now += 1
        run.emit(node, "weights", version=1, seconds=1.0, bytes=4_000_000)
    result(run)
    (spread,) = run.meter.series.makespans
    assert (spread.working_seconds, spread.seconds) == (4.0, 5.0)


def test_a_relay_that_never_has_a_version_keeps_nobody_from_work():
    run = measured_run()
    run.stored(run.checkpoint(1, run.genesis), "trainer")
    for node in ("worker-0", *VALIDATORS):
        run.now += 1
        run.emit(node, "weights", version=1, seconds=1.0, bytes=4_000_000)
    run.wait(40)
    result(run)
    (spread,) = run.meter.series.makespans
    assert (spread.working_seconds, spread.seconds) == (4.0, math.inf)


@pytest.mark.parametrize(
    ("nodes", "fanout", "levels"),
    [(1, 4, 1), (2, 4, 2), (5, 4, 2), (6, 4, 3), (21, 4, 3), (8, 2, 4)],
)
def test_each_level_of_a_tree_takes_a_round_trip(nodes, fanout, levels):
    assert round_trips_least(nodes, fanout) == 8 + levels


def test_the_bound_of_a_version_is_that_of_the_lines_at_its_publication():
    run = measured_run()
    run.emit("trainer", "line", upload=500_000, download=4_000_000)
    manifest = run.checkpoint(1, run.genesis)
    run.stored(manifest, "trainer")
    run.emit("trainer", "line", upload=1_000_000, download=4_000_000)
    for node in ("relay", "worker-0", "validator-0", "validator-1", "validator-2"):
        run.now += 2
        run.emit(node, "weights", version=1, seconds=1.0, bytes=4_000_000)
    weights = result(run).weights
    assert weights.makespan_ratio_p50 == pytest.approx(10.0 / 8.0)
    assert weights.round_trips_p50 == pytest.approx(2.0 / 0.1)


def test_a_newer_version_counts_for_the_older_ones():
    run = measured_run()
    first = run.checkpoint(1, run.genesis)
    run.stored(first, "trainer")
    second = run.checkpoint(2, first)
    run.stored(second, "trainer")
    run.now += 8
    for node in ("relay", "worker-0", *VALIDATORS):
        run.emit(node, "weights", version=2, seconds=1.0, bytes=4_000_000)
    assert result(run).weights.versions == 2


def test_a_version_that_never_arrives_everywhere_is_infinitely_late():
    run = measured_run()
    run.stored(run.checkpoint(1, run.genesis), "trainer")
    run.wait(20)
    assert result(run).weights.versions == 0
    run.wait(20)
    weights = result(run).weights
    assert weights.versions == 1
    assert weights.makespan_ratio_p99 is None
    assert json.dumps(run.meter.series.to_json(), allow_nan=False)


def test_the_trainer_is_idle_when_no_step_runs():
    run = measured_run()
    assert result(run).trainer_idle_share is None
    manifest = run.published(1, run.genesis)
    commit = run.certified("worker-0")
    for version in range(2, 5):
        run.now += 8
        run.trained(commit)
        manifest = run.published(version, manifest)
    # Three steps of one second; the first began at second 7, the run ends at second 24.
    assert result(run).trainer_idle_share == round(1 - 3 / 17, 4)
    assert result(run).versions_published == 4


def test_the_steps_of_shadows_are_not_those_of_the_leader():
    run = measured_run()
    commit = run.certified("worker-0")
    run.now += 2
    run.shadowed("relay", commit)
    assert result(run).trainer_idle_share is None
    run.trained(commit)
    run.now += 3
    run.shadowed("relay", commit)
    run.emit("relay", "sample")
    assert result(run).trainer_idle_share == 0.75


def test_idle_time_ends_with_the_last_step():
    run = measured_run()
    manifest = run.published(1, run.genesis)
    run.now += 2
    commit = run.certified("worker-0")
    run.now += 2
    run.trained(commit)
    run.now += 4
    run.trained(commit)
    run.watch.rules = type(run.watch.rules)(
        **{name: getattr(run.watch.rules, name) for name in run.watch.rules.__slots__}
        | {"steps": 2}
    )
    run.published(2, manifest)
    run.now += 100
    assert result(run).trainer_idle_share == 0.6


def test_series_follow_the_run_and_stay_small():
    run = measured_run()
    commit = run.certified("worker-0")
    run.wait(1)
    run.published(1, run.genesis, [commit])
    run.emit("world", "fault", what="partition")
    run.emit("relay", "sample", members=5)
    run.emit("trainer", "sample", members=7)
    run.wait(1)
    series = run.meter.series
    moment = series.moments[-1]
    assert (moment.committed, moment.certified, moment.live) == (1, 1, 7)
    assert (moment.view_min, moment.view_median, moment.view_max) == (5, 6, 7)
    (learned,) = series.versions.values()
    assert (learned.version, learned.reward, learned.lag_mean, learned.lag_max) == (1, 0.5, 0, 0)
    assert series.marks == [(2.0, "partition")]
    run.wait(3 * POINTS_MAX)
    assert len(series.moments) < POINTS_MAX
    assert series.moments[-1].at > 6 * POINTS_MAX - 20


# Small parts


@given(st.lists(st.floats(1e-3, 1e4), min_size=1), st.floats(0, 1))
def test_a_histogram_is_right_to_two_per_cent(values, share):
    histogram = SpreadHistogram()
    for value in values:
        histogram.add(value)
    exact = quantile(sorted(values), share)
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.0201)


def test_a_histogram_knows_what_never_came():
    histogram = SpreadHistogram()
    assert math.isnan(histogram.quantile(0.5))
    histogram.add(1.0)
    histogram.add(math.inf)
    assert histogram.quantile(0.5) == pytest.approx(1.0, rel=0.02)
    assert math.isinf(histogram.quantile(0.51))
    assert histogram.curve()[-1][1] == 0.5
    assert rounded(math.inf) is None


def member(upload, download):
    return TracedNode("m", 0, "relay", "p", "", upload, download)


@pytest.mark.parametrize(
    ("root", "others", "seconds"),
    [
        (member(10, 0), [member(10, 20)] * 3, 10.0),  # the root's line
        (member(100, 0), [member(100, 20), member(100, 4)], 25.0),  # the slowest receiver
        (member(100, 0), [member(0.001, 100)] * 9, 9.0),  # hardly any other upload
        (member(0, 0), [member(0, 0)], 0.0),  # no limits
        (member(1, 0), [], 0.0),
    ],
)
def test_the_bound_is_the_narrowest_of_three(root, others, seconds):
    assert ideal_seconds(100, root, others) == pytest.approx(seconds, rel=1e-3)


# Final pages


def sampled(run, name, final_epoch):
    run.emit(name, "sample", final_epoch=final_epoch)


def test_the_gap_is_the_distance_of_the_newest_final_page():
    run = measured_run()
    run.wait(SETTLE_EPOCHS)
    for behind in (1, 1, 2, 9):
        sampled(run, "relay", run.epoch() - behind)
    sampled(run, "liar", -1)  # it is dishonest
    found = result(run)
    assert (found.final_gap_epochs_p50, found.final_gap_epochs_p99) == (1, 9)


def test_a_node_that_has_just_started_has_no_gap():
    run = measured_run()
    run.wait(SETTLE_EPOCHS - 1)
    sampled(run, "relay", -1)
    assert result(run).final_gap_epochs_p99 is None
    run.wait(1)
    run.down("trainer")
    run.up("trainer", restart=True)
    sampled(run, "trainer", -1)
    sampled(run, "relay", run.epoch() - 2)
    assert result(run).final_gap_epochs_p99 == 2


def test_the_ledger_is_that_of_final_pages():
    run = measured_run()
    pages = run.chain(3, epoch=LED_EPOCH)
    found = result(run).ledger
    assert (found.rollouts, found.tokens, found.checks, found.slashed) == (0, 0, 0, 0)
    assert found.behind_epochs_p99 is None
    commit = run.certified("worker-0")
    certificate = run.certificate(VALIDATORS, commit, accepted=True, escalated=True)
    run.spread(certificate)
    receipt = run.receipt(commit, *VALIDATORS)
    page = run.page(pages[-1], certified=[run.digest(commit)], checkers=[7], receipts=[receipt])
    run.chain(2, run.voted(page))
    found = result(run).ledger
    assert (found.rollouts, found.tokens, found.checks, found.slashed) == (1, 40, 3, 0)


def test_a_node_is_behind_by_the_final_pages_that_it_has_not_counted():
    run = measured_run()
    run.wait(SETTLE_EPOCHS)
    run.down("trainer")
    run.up("trainer", restart=True)
    root = run.checkers.ledger.roots[-1]
    for name, final_epoch in {"relay": 4, "worker-0": 1, "liar": 8, "trainer": 9}.items():
        facts = {"counted_epoch": -1, "counted_root": root}
        run.emit(name, "sample", final_epoch=final_epoch, **facts)
    assert result(run).ledger.behind_epochs_p99 == 5


def test_conflicting_final_pages_are_counted():
    run = measured_run()
    for name in VALIDATORS:
        run.watch.swarm.members[name].behaviour = "two-votes"
    run.chain(3, epoch=1)
    assert result(run).conflicting_final_pages == 0
    run.chain(3, epoch=4)
    assert result(run).conflicting_final_pages == 1
