from dataclasses import replace

import pytest

from node.api.judging import judging_status
from node.api.metrics import NodeMetrics
from node.api.status import JudgingStatus
from node.cli.render.status import status_view, why_view
from protocol.messages import Certificate
from tests.node.api.status_examples import EXPLAINED, STATUS
from tests.node.cli.render.test_status import drawn
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest())
NOW = WORLD.at(1)
STATISTIC = 4
"""Index of the sampling gap among the means."""


def take(replica, *messages):
    for signed in messages:
        replica.receive(signed.envelope, NOW)


def outcome(commit, reason="accepted", gap=0, dissent=None):
    """Return all verdicts of a committee, one possibly dissenting, and the outcome."""
    committee = WORLD.committee(commit)
    accepted = reason == "accepted"
    means = tuple(gap if n == STATISTIC else 0 for n in range(8))
    fields = {"reason": reason, "chunks": 4, "means": means, "extremes": (0,) * 5}
    verdicts = [
        WORLD.verdict(WORLD.by_peer[peer], commit, accept=accepted, **fields)
        for peer in committee.escalated[: committee.quorum]
    ]
    certificate = Certificate(
        commit=commit.digest,
        page=committee.page.digest,
        escalated=True,
        accepted=accepted,
        verdicts=tuple(one.envelope for one in verdicts),
    )
    found = [commit, *verdicts, WORLD.sealed(certificate, WORLD.validators[0])]
    if dissent is not None:
        last = WORLD.by_peer[committee.escalated[-1]]
        found.append(WORLD.verdict(last, commit, accept=dissent == "accepted", reason=dissent))
    return found, committee.escalated[-1]


def test_workers_that_are_off_together_are_told():
    replica = WORLD.replica(roster_at=1)
    for worker in WORLD.workers[:2]:
        for commit in WORLD.chain(worker, 2):
            take(replica, *outcome(commit, "statistics", gap=10_000)[0])
    status = judging_status(replica)
    (doubt,) = status.doubts[:1]
    assert doubt.startswith("2 of 2 workers are beyond sampling_gap")
    assert (status.workers, status.workers_off) == (2, 2)
    assert not any(map(replica.ledger.workers.is_slashed, replica.ledger.workers.counts))


def test_workers_that_fit_put_nothing_in_doubt():
    replica = WORLD.replica(roster_at=1)
    for worker in WORLD.workers[:2]:
        for commit in WORLD.chain(worker, 2):
            take(replica, *outcome(commit)[0])
    assert judging_status(replica) == JudgingStatus(workers=2)


@pytest.mark.parametrize(
    ("reason", "dissent", "counts"),
    [
        ("accepted", "reward", True),
        ("reward", "accepted", True),
        ("reward-history", "accepted", True),
        ("accepted", "statistics", False),
        ("statistics", "accepted", False),
        ("reward", "reward-history", False),
    ],
)
def test_validators_whose_scores_the_committee_overrules_are_counted(reason, dissent, counts):
    replica = WORLD.replica(roster_at=1)
    commit = WORLD.commit(WORLD.workers[0])
    messages, dissenter = outcome(commit, reason, dissent=dissent)
    take(replica, *messages)
    status = judging_status(replica)
    assert status.overruled == ({dissenter: 1} if counts else {})
    rejected = reason.startswith("reward")
    assert status.rewards_differed == ({commit.signer: 1} if rejected else {})


TOLD = JudgingStatus(("3 of 4 workers are beyond it",), 4, 3, {}, {STATUS.peer_id: 2})


def test_doubts_and_overruled_scores_are_shown():
    lines = drawn(status_view(replace(STATUS, judging=TOLD), STATUS.started_at))
    assert "3 of 4 workers are beyond it" in lines
    assert any("scored 2 rollouts differently from its committee" in line for line in lines)
    assert "a doubt" in drawn(why_view(replace(EXPLAINED, doubts=("a doubt",))))


def test_doubts_and_overruled_scores_are_metrics():
    text = NodeMetrics(lambda: replace(STATUS, judging=TOLD)).exposition().decode()
    for line in ("workers_judged 4.0", "workers_off 3.0", "scores_overruled 2.0"):
        assert f"\nprime_node_{line}\n" in text
