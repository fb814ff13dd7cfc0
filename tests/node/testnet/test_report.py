import json
from dataclasses import replace
from pathlib import Path

import pytest

from node.api.council import CouncilSummary
from node.api.status import BusyTimeStatus
from node.founding.expected import Point
from node.testnet.idle import idle_share
from node.testnet.plan import CHEATER_KINDS, LAZY_KINDS, Options
from node.testnet.poll import StatusSample
from node.testnet.record import SwarmRecord
from node.testnet.report import build_report, honest_rejected, write_report
from node.testnet.view import fate
from protocol.rollout.evaluation import EvaluationPoint
from tests.node.testnet.testnet_swarms import (
    STARTED_AT,
    arrived,
    give,
    learned_swarm,
    plans,
    sample,
    status,
)

KEYS = [
    "run_id",
    "wall_s",
    "seconds_to_first_certificate",
    "steps",
    "reward_first",
    "reward_last",
    "greedy_eval_last",
    "evaluation",
    "expected",
    "rollouts",
    "trained_without_certificate",
    "cheaters",
    "policy_lag_max",
    "trainer_idle_share",
    "policy_swap_seconds_median",
    "weights_bytes_sent",
    "versions",
    "peak_rss_mb",
    "nodes",
]


def report_of(record: SwarmRecord, **more) -> dict:
    given = {"run_id": "ab" * 32, "versions": 37, "wall_seconds": 200.04}
    return build_report(record, **{**given, "greedy_eval_last": 0.98765, **more})


def test_the_evaluation_is_that_of_the_node_that_has_read_most():
    record = learned_swarm()
    assert report_of(record)["evaluation"] == []
    few, many = (EvaluationPoint(0, n, 8 * n, 0.25, 0.12, 0.4, 0.2, 0.1, 0.3) for n in (4, 16))
    for node, point in zip(record.nodes.values(), (few, many), strict=False):
        node.status = replace(node.status, evaluation=(point,))
    (told,) = report_of(record)["evaluation"]
    assert (told["version"], told["problems"], told["answers"]) == (0, 16, 128)
    assert (told["reward_mean"], told["reward_low"], told["reward_high"]) == (0.25, 0.12, 0.4)


def test_the_report_says_what_was_recorded(tmp_path):
    record = learned_swarm()
    report = report_of(record)
    assert list(report) == KEYS
    assert report["wall_s"] == 200.0
    assert report["steps"] == 37
    assert report["policy_swap_seconds_median"] == 1.5
    assert report["seconds_to_first_certificate"] == 31.0
    rewards = [0.9 - 0.55 * 0.95**version for version in range(1, 38)]
    assert report["reward_first"] == pytest.approx(sum(rewards[:5]) / 5, abs=1e-4)
    assert report["reward_last"] == pytest.approx(sum(rewards[-5:]) / 5, abs=1e-4)
    assert report["greedy_eval_last"] == 0.9877
    assert report["rollouts"] == {
        "committed": 202,
        "certified": 171,
        "rejected": 5,
        "rejected_reasons": {"computation": 4, "sampling": 1},
        "expired": 1,
    }
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
    assert report["expected"] is None
    curve = [Point(5, 0.3), Point(37, 0.99), Point(99, 0.1)]
    found = report_of(record, curve=curve)["expected"]
    assert found["reward"] == report["reward_last"]
    assert (found["version"], found["reward_least"], found["met"]) == (37, 0.99, False)
    write_report(report, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report


def test_the_report_says_how_each_version_spread():
    record = learned_swarm()
    assert report_of(record)["versions"] == []
    names = [name for name in record.nodes if name != "trainer-1"]
    for number, name in enumerate(names, start=1):
        given = arrived(36, number / 4)
        give(record, name, replace(given, form="file") if number == 1 else given)
    give(record, names[0], arrived(37, 1.0))
    give(record, names[0], replace(arrived(36, 99.0), root_bytes=0), arrived(37, 99.0))
    before, last = report_of(record)["versions"]
    assert before == {
        "version": 36,
        "nodes": 12,
        "nodes_reached": 12,
        "forms": {"file": 1, "patch": 11},
        "seconds_to_half": 1.5,
        "seconds_to_all": 3.0,
        "bytes_from_publisher": 12 * 4_000_000,
        "bytes_from_peers": 12 * 4_000_000,
        "bytes_by_http": 12 * 2_000_000,
        "bytes_by_stream": 12 * 6_000_000,
    }
    assert (last["version"], last["nodes"], last["nodes_reached"]) == (37, 12, 1)
    assert last["seconds_to_half"] is last["seconds_to_all"] is None
    json.dumps(last)


def test_the_dead_are_not_waited_for():
    record = learned_swarm()
    names = [name for name in record.nodes if name != "trainer-1"]
    for number, name in enumerate(names[:-1], start=1):
        give(record, name, arrived(37, float(number)))
    record.observe(names[-1], StatusSample(100, False, None))
    (last,) = report_of(record)["versions"]
    assert (last["nodes"], last["nodes_reached"], last["seconds_to_all"]) == (11, 11, 11.0)
    assert last["seconds_to_half"] == 6.0
    record.observe(names[0], StatusSample(100, False, None))
    (last,) = report_of(record)["versions"]
    assert (last["nodes"], last["nodes_reached"]) == (11, 11), "it had it before"


def trains(record: SwarmRecord, began_at: float | None, seconds: float, at: float, pid: int = 100):
    """Add an observation of the trainer with these steps."""
    status = record.nodes["trainer-1"].status
    steps = BusyTimeStatus(began_at, seconds)
    record.observe("trainer-1", StatusSample(pid, True, replace(status, steps=steps), at=at))


def test_the_trainer_is_idle_from_its_first_step_on_when_no_step_runs():
    record = learned_swarm(versions=36)
    assert report_of(record)["trainer_idle_share"] is None
    trains(record, None, 0.0, STARTED_AT + 30)
    assert report_of(record)["trainer_idle_share"] is None
    # Steps took 32 of the 50 s between second 40 and second 90, the last observation.
    trains(record, STARTED_AT + 40, 32.0, STARTED_AT + 90)
    assert report_of(record)["trainer_idle_share"] == 0.36
    # Another process of it: 32 + 28 of 80 s.
    trains(record, STARTED_AT + 100, 28.0, STARTED_AT + 120, pid=101)
    assert report_of(record)["trainer_idle_share"] == 0.25
    # Neither a silent trainer nor an answering relay extends it.
    relay = record.nodes["relay-1"].status
    record.observe("trainer-1", StatusSample(101, True, None, at=STARTED_AT + 990))
    record.observe("relay-1", StatusSample(100, True, relay, at=STARTED_AT + 990))
    assert report_of(record)["trainer_idle_share"] == 0.25


def test_idle_time_ends_with_the_last_version():
    record = learned_swarm(versions=37)
    # Version 37 was published at second 20 + 4 * 37 = 168, 128 s after the first step began.
    trains(record, STARTED_AT + 40, 96.0, STARTED_AT + 500)
    assert report_of(record)["trainer_idle_share"] == 0.25
    assert report_of(record, versions=99)["trainer_idle_share"] == round(1 - 96 / 460, 4)


@pytest.mark.parametrize(
    ("steps", "until", "share"),
    [
        ([], 100.0, None),
        ([BusyTimeStatus()], 100.0, None),
        ([BusyTimeStatus(10.0, 5.0)], 10.0, None),
        ([BusyTimeStatus(10.0, 5.0)], 20.0, 0.5),
        ([BusyTimeStatus(15.0, 1.0), BusyTimeStatus(), BusyTimeStatus(10.0, 1.5)], 20.0, 0.75),
        ([BusyTimeStatus(10.0, 10.5)], 20.0, 0.0),
    ],
)
def test_idle_shares(steps, until, share):
    assert idle_share(steps, until) == share


def test_every_liar_is_listed_with_its_own_counts():
    report = report_of(learned_swarm())
    assert report["cheaters"] == [
        {"kind": kind, "committed": 2, "certified": 0} for kind in CHEATER_KINDS[:5]
    ]


@pytest.mark.parametrize(
    ("number", "is_member", "lost"), [(0, False, False), (1, True, False), (1, False, True)]
)
def test_a_lazy_validator_is_listed_with_its_seat(number, is_member, lost):
    """Before its first page a node is no member either."""
    (plan,) = (one for one in plans(Options(Path("t"), lazy_validators=1)) if one.behaviour)
    record = SwarmRecord(STARTED_AT)
    record.add(plan)
    council = CouncilSummary(number=number, is_member=is_member)
    record.observe(plan.name, sample(status(plan, council=council)))
    assert report_of(record)["cheaters"] == [{"kind": LAZY_KINDS[0], "lost_seat": lost}]
    assert fate(record, plan)[0] == ("lost its seat" if lost else "has its seat")


def test_rejections_of_liars_are_not_held_against_honest_workers():
    assert honest_rejected(learned_swarm()) == 0
    assert honest_rejected(learned_swarm(cheaters=0)) == 0


def test_a_swarm_that_never_started_has_a_report_too():
    report = report_of(SwarmRecord(STARTED_AT), run_id="", wall_seconds=3, greedy_eval_last=None)
    assert list(report) == KEYS
    assert report["reward_first"] is report["seconds_to_first_certificate"] is None
    assert report["steps"] == 0
