"""Agreement of the simulator with real nodes.

Nine nodes run a small run on real ``p2pd`` processes, with hivemind's directory, SQLite and files.
Then it is simulated twice (``agreement_swarms`` lists the shared parts):

* From version 0 on, with everything else left to the simulator. Times differ, and so do epochs,
  digests of commits and committees. The rollouts must agree byte for byte, and so must their
  outcomes and the ledger's credits.
* Restarted on the real nodes' disks with nothing but the inputs of their decisions. Commits and
  clocks are the same here, so committees, the decisions of verdicts and certificates, and the
  batch of version 1 must be the same; its weights too if both lots have one order.

The tests fail if a simulator model loses, changes or reorders data that the real transport, store
or directory keeps. They also fail if the daemon relies on a property of one side alone.
"""

import asyncio
from dataclasses import asdict

import pytest
import uvloop

from protocol.core.crypto import verify
from protocol.messages import Verdict, envelope_kind, open_envelope
from tests.live.agreement_swarms import (
    HONEST,
    LIARS,
    SLOTS,
    founded,
    live_run,
    simulate_from_live_disks,
    simulate_from_version_0,
)

pytestmark = pytest.mark.live

CERTIFIED = {(name, 0, slot): "certified" for name in HONEST for slot in range(SLOTS)}
REJECTED = {(name, 0, 0): "rejected" for name in LIARS}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    directory = tmp_path_factory.mktemp("live")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(live_run(directory, *founded()))


@pytest.fixture(scope="module")
def simulated(live):
    return simulate_from_version_0(live)


@pytest.fixture(scope="module")
def repeated(live):
    return simulate_from_live_disks(live)


VALIDATORS = {"validator-0", "validator-1", "validator-2"}


def outcomes(side, node):
    """Return the outcome of each rollout, by worker, version and slot."""
    found = {}
    for entry in side.replicas[node].ledger.commits.entries.values():
        message = entry.commit.message
        found[side.names[entry.commit.signer], message.version, message.slot] = (
            message.checkpoint,
            message.body,
            message.body_bytes,
            message.tokens,
            str(entry.state),
            entry.reason,
            entry.trained_in,
        )
    return found


def ledger(side, node):
    """Return the totals of each worker except decaying ones, whose last digits differ."""
    workers = side.replicas[node].ledger.workers.counts
    told = {
        side.names[worker]: {
            name: value
            for name, value in asdict(counts).items()
            if name not in {"earned", "wasted"}
        }
        for worker, counts in workers.items()
    }
    assert all(counts["committed"] for counts in told.values())
    return told


def version_1(side, node):
    """Return the version's manifest, and its batch by worker and slot."""
    replica = side.replicas[node].ledger
    message = replica.chain.get(1).message
    entries = [replica.commits.entries[commit] for commit in message.batch]
    return message, {
        (side.names[entry.commit.signer], entry.commit.message.slot) for entry in entries
    }


DRAWN = {"page", "nonce", "witness", "replays"}
"""Fields of a verdict that follow from the page, of which the two swarms have different ones."""


def verdicts(side):
    """Return what validators signed and stored, apart from ``DRAWN``, by validator and commit."""
    found = {}
    for node, tables in side.disks.items():
        for envelope in tables["messages"].values():
            if envelope_kind(envelope) == Verdict.kind:
                run_id = side.replicas[node].run_id
                signed = open_envelope(envelope, Verdict, run_id, verify)
                key = side.names[signed.signer], signed.message.commit
                found[key] = signed.message.model_dump(exclude=DRAWN)
    return found


def test_the_run_was_worth_comparing(live):
    found = outcomes(live, "trainer-0")
    assert {key: value[4] for key, value in found.items()} == CERTIFIED | REJECTED
    assert {key[0]: value[5] for key, value in found.items() if value[4] == "rejected"} == {
        "worker-2": "reward",
        "worker-3": "sampling",
    }
    assert len({value[1] for value in found.values()}) == len(found), "no two bodies are the same"


@pytest.mark.parametrize("other", ["simulated", "repeated"])
def test_every_node_of_both_swarms_holds_the_same_outcomes_and_ledger(live, other, request):
    sides = (live, request.getfixturevalue(other))
    expected = outcomes(live, "trainer-0"), ledger(live, "trainer-0")
    for side in sides:
        for node in side.replicas:
            assert (outcomes(side, node), ledger(side, node)) == expected, node


def test_both_trainers_learned_from_the_same_rollouts(live, simulated):
    ours, batch = version_1(live, "trainer-0")
    theirs, their_batch = version_1(simulated, "trainer-0")
    assert batch == their_batch == {(name, slot) for name, _, slot in CERTIFIED}
    assert ours.parent == theirs.parent
    assert ours.reward_mean == theirs.reward_mean
    assert (ours.term, ours.total_bytes) == (theirs.term, theirs.total_bytes)


# The same commits at the same times


def test_all_nodes_of_a_swarm_draw_the_same_committees(live, repeated):
    """Both councils are the three validators; their pages, and so their beacons, differ."""
    commits = [entry.commit for entry in live.replicas["trainer-0"].ledger.commits.entries.values()]
    for commit in commits:
        for side in (live, repeated):
            committee = side.replicas["trainer-0"].verdicts.committee(commit)
            assert {side.names[peer] for peer in committee.first} == VALIDATORS
            for node, replica in side.replicas.items():
                drawn = replica.verdicts.committee(commit)
                page = drawn.page.digest
                assert (drawn.ranking, page) == (committee.ranking, committee.page.digest), node


def test_validators_sign_the_same_verdicts(live, repeated):
    """Two of three verdicts decide on a commit, and chance decides which two come first."""
    ours, theirs = verdicts(live), verdicts(repeated)
    both = ours.keys() & theirs.keys()
    for key in both:
        assert ours[key] == theirs[key], key
    commits = live.replicas["trainer-0"].ledger.commits.entries
    assert {commit for _, commit in both} == set(commits)
    assert len(both) >= len(commits)


def test_certificates_and_the_version_after_them_are_the_same(live, repeated):
    ours, theirs = (side.replicas["trainer-0"].ledger for side in (live, repeated))
    assert ours.commits.entries.keys() == theirs.commits.entries.keys()
    for digest, entry in ours.commits.entries.items():
        known = theirs.commits.entries[digest].certificate.message
        assert known.accepted == entry.certificate.message.accepted
    mine, yours = ours.chain.get(1).message, theirs.chain.get(1).message
    assert set(mine.batch) == set(yours.batch)
    if mine.batch == yours.batch:  # the beacons of two runs may rank the lot in two orders
        assert (mine.policy, mine.index) == (yours.policy, yours.index)
