import json

import pytest

from node.testnet.plan import CHEATER_KINDS
from node.testnet.record import SwarmRecord
from node.testnet.report import build_report, honest_rejected, write_report
from tests.node.testnet.testnet_swarms import STARTED_AT, learned_swarm

KEYS = [
    "run_id",
    "wall_s",
    "seconds_to_first_certificate",
    "steps",
    "reward_first",
    "reward_last",
    "greedy_eval_last",
    "rollouts",
    "trained_without_certificate",
    "cheaters",
    "policy_lag_max",
    "weights_bytes_sent",
    "versions",
    "peak_rss_mb",
    "nodes",
]


def report_of(record: SwarmRecord) -> dict:
    return build_report(record, run_id="ab" * 32, wall_seconds=200.04, greedy_eval_last=0.98765)


def test_the_report_says_what_was_recorded(tmp_path):
    record = learned_swarm()
    report = report_of(record)
    assert list(report) == KEYS
    assert report["wall_s"] == 200.0
    assert report["steps"] == 37
    assert report["seconds_to_first_certificate"] == 31.0
    rewards = [0.9 - 0.55 * 0.95**version for version in range(1, 38)]
    assert report["reward_first"] == pytest.approx(sum(rewards[:5]) / 5, abs=1e-4)
    assert report["reward_last"] == pytest.approx(sum(rewards[-5:]) / 5, abs=1e-4)
    assert report["greedy_eval_last"] == 0.9877
    assert report["rollouts"] == {"committed": 202, "certified": 171, "rejected": 5, "expired": 1}
    assert report["nodes"] == {"relay": 1, "trainer": 1, "validator": 3, "inference": 8}
    assert report["weights_bytes_sent"] == sum(range(1, 14)) * 11_000_000
    assert report["peak_rss_mb"] == {
        "inference": 312,
        "validator": 304,
        "trainer": 301,
        "relay": 300,
        "p2pd": 40,
        "testnet": 90,
    }
    write_report(report, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report


def test_every_liar_is_listed_with_its_own_counts():
    report = report_of(learned_swarm())
    assert report["cheaters"] == [
        {"kind": kind, "committed": 2, "certified": 0} for kind in CHEATER_KINDS[:5]
    ]


def test_rejections_of_liars_are_not_held_against_honest_workers():
    assert honest_rejected(learned_swarm()) == 0
    assert honest_rejected(learned_swarm(cheaters=0)) == 0


def test_a_swarm_that_never_started_has_a_report_too():
    report = build_report(SwarmRecord(STARTED_AT), run_id="", wall_seconds=3, greedy_eval_last=None)
    assert list(report) == KEYS
    assert report["reward_first"] is report["seconds_to_first_certificate"] is None
    assert report["steps"] == 0
