"""Planted bugs: the simulator detects a missing check of the daemon, and no other violation.

Each scenario passes unchanged. Then one check is removed from the daemon. The simulator must end
with the violated rule, its causes, and a command that repeats the same violation. The two longest
scenarios are not repeated.
"""

import shlex
import time
from dataclasses import replace

import pytest

from node.cli import loading
from node.cli.main import main
from node.replication.ledger_sync import LedgerSync
from node.replication.rollout_bodies import RolloutBodies
from protocol.consensus.council import Council
from protocol.consensus.member import CouncilMember
from protocol.consensus.pages import PageTree
from protocol.consensus.verdict_pool import Outcome, VerdictPool, VerdictTable
from protocol.core.types import ValidationResult
from protocol.gossipsub.mesh import Mesh
from protocol.ledger.accounts import Accounts
from protocol.ledger.backpressure import Backpressure
from protocol.ledger.final_ledger import FinalLedger
from protocol.messages import PageVote, Verdict
from protocol.replica.page_contents import PageContents
from protocol.replica.received import Received
from protocol.replica.replica import Replica
from protocol.replica.settlement import Settlement
from simulations.ports.incoming_file import SimIncomingFile
from simulations.runtime.content import joined
from simulations.study.study import RunPlan, run_plan

SMALL = """
name = "planted"
description = "Ten nodes that soon have something to learn from."
minutes = 1.25
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 5
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
"""

BAD_RELAYS = """
name = "planted"
description = "Two of three relays serve other bytes of weights."
minutes = 2
[nodes]
relay = 3
trainer = 1
validator = 3
inference = 5
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
[[adversaries]]
role = "relay"
behaviour = "bad-bytes"
count = 2
"""

CROWDED = """
name = "planted"
description = "As many nodes as make meshes full, most of which then go."
minutes = 0.9
[nodes]
relay = 2
trainer = 1
validator = 4
inference = 11
start_seconds = 4
[[faults]]
kind = "crash"
minute = 0.34
nodes = {roles = ["inference"], count = 9}
"""


LATE = """
name = "planted"
description = "A small swarm, and a node that joins it late."
minutes = 5.5
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 5
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
[protocol.committee]
expire_after_epochs = 6
[[faults]]
kind = "flash-crowd"
minute = 3
seconds = 1
count = 1
"""


def rank_of_any_page(table, certificate, verdicts, commit, page, rank=VerdictTable.rank):
    """Rank a certificate as if its page drew the committee of every commit."""
    page = replace(page, drawn={commit.digest: None})
    return rank(table, certificate, verdicts, commit, page)


def verdict_for_any_page(replica, statement, _now, _arrived_at=None):
    """Accept a verdict or seal as if its page drew the committee of every commit."""
    entry = replica.ledger.commits.entries.get(statement.message.commit)
    added = entry is not None and replica.verdicts.add(statement, entry.commit)
    result = ValidationResult.ACCEPT if added is True else ValidationResult.IGNORE
    return Received(result, statement, lasting=isinstance(statement.message, Verdict))


@pytest.fixture
def simulate(tmp_path):
    """Return a function that runs a scenario."""
    file = tmp_path / "scenario.toml"

    def simulate(text, seed=1):
        file.write_text(text)
        outcome = run_plan(RunPlan(str(file), seed), clock=time.perf_counter)
        assert outcome.result.events > 300  # the swarm worked
        return outcome

    return simulate


@pytest.fixture
def repeat(monkeypatch, capsys, tmp_path):
    """Return a function that runs a failed plan's command and checks that it fails alike."""
    entry = loading.EntryPoint("simulate", "simulations.cli.main:app", loading.GROUP)
    monkeypatch.setattr(loading, "entry_points", lambda group: [entry] if group else [])
    monkeypatch.chdir(tmp_path)  # outside of the checkout, which would record the failure

    def repeat(outcome):
        command, violation = outcome.plan.command, outcome.violation
        program, *arguments = shlex.split(command)
        assert program == "prime-node"
        assert main(arguments) == 1
        told = capsys.readouterr().err
        assert violation.rule in told
        assert violation.what in told
        assert violation.causes
        for cause in violation.causes:
            assert cause in told
        assert f"repeat it: {command}\n" in told

    return repeat


# Certificates


def test_a_trainer_that_does_not_wait_for_certificates_is_seen(monkeypatch, simulate, repeat):
    """Only the trainer calls ``usable``, to select rollouts to learn from."""

    def usable(demand):
        return [entry for entry in demand._unlearned.values() if demand._is_current(entry)]

    assert simulate(SMALL).violation is None
    monkeypatch.setattr(Backpressure, "usable", usable)
    outcome = simulate(SMALL)
    assert outcome.violation.rule == "certified-only"
    assert outcome.violation.node == "trainer-0"
    assert any("stored rollout-commit" in line for line in outcome.violation.causes)
    repeat(outcome)


def test_a_committee_that_nobody_counts_is_seen(monkeypatch, simulate, repeat):
    def first_word(tally, committee):
        heard = [tally.verdicts[peer] for peer in committee.first if peer in tally.verdicts]
        accepting = tuple(verdict for verdict in heard[:1] if verdict.message.accept)
        return Outcome(accepted=True, escalated=False, verdicts=accepting) if accepting else None

    monkeypatch.setattr(VerdictPool, "outcome", first_word)
    monkeypatch.setattr("protocol.consensus.verdict_pool.check_certificate", lambda *_: None)
    outcome = simulate(SMALL)
    assert outcome.violation.rule == "certified-only"
    assert "2 are needed" in outcome.violation.what
    repeat(outcome)


def test_a_committee_of_another_page_is_seen(monkeypatch, simulate, repeat):
    """The newest page draws all committees, so an author can choose among several."""

    def newest(tree, _commit, _tip=None):
        chain = [node for node in tree.tip().path() if node.draws]
        return chain[0] if chain else None

    monkeypatch.setattr(PageTree, "drawing", newest)
    monkeypatch.setattr(VerdictTable, "rank", rank_of_any_page)
    monkeypatch.setattr(Replica, "_verdict", verdict_for_any_page)
    outcome = simulate(SMALL)
    assert outcome.violation.rule == "certified-only"
    assert "another page draws its committee" in outcome.violation.what
    repeat(outcome)


# Pages


def test_pages_of_another_proposer_are_seen(monkeypatch, simulate, repeat):
    """Members take turns, so that each knows long before when it will choose the reveals."""

    def in_turn(council, _seed, epoch):
        members = council.members
        return tuple(members[(epoch + place) % len(members)] for place in range(3))

    monkeypatch.setattr(Council, "proposers", in_turn)
    outcome = simulate(SMALL.replace("validator = 3", "validator = 6"))
    assert outcome.violation.rule == "valid-pages"
    assert "its author is no proposer" in outcome.violation.what
    repeat(outcome)


def test_a_member_that_votes_twice_in_an_epoch_is_seen(monkeypatch, simulate, repeat):
    """It votes for a page that does not exist, too."""

    def twice(member, epoch, share):
        messages = act(member, epoch, share)
        votes = [one for one in messages if isinstance(one, PageVote) and epoch > 5]
        return [*messages, *(one.model_copy(update={"page": bytes(32)}) for one in votes)]

    act = CouncilMember.act
    monkeypatch.setattr(CouncilMember, "act", twice)
    outcome = simulate(SMALL)
    assert outcome.violation.rule == "one-vote"
    repeat(outcome)


# Ledger


def test_checks_of_nobody_are_seen(monkeypatch, simulate, repeat):
    """All nodes agree, and credit each worker with the check of its own rollout."""

    def own(settlement, *arguments):
        found = work(settlement, *arguments)
        credited = [
            one._replace(checkers=tuple(sorted({*one.checkers, one.worker})))
            for one in (() if found is None else found.receipts)
        ]
        return found and found._replace(receipts=tuple(credited))

    work = Settlement.work
    monkeypatch.setattr(Settlement, "work", own)
    outcome = simulate(SMALL.replace("1.25", "2"))
    assert outcome.violation.rule == "true-work"
    assert "another digest of its work" in outcome.violation.what
    repeat(outcome)


def test_pages_that_state_other_accounts_are_seen(monkeypatch, simulate, repeat):
    """Proposers and voters agree on the accounts of the beginning of the run."""
    root = FinalLedger.root
    monkeypatch.setattr(FinalLedger, "root", lambda ledger, _epoch: root(ledger, -1))
    outcome = simulate(SMALL)
    assert outcome.violation.rule == "true-accounts"
    repeat(outcome)


def test_accounts_that_count_otherwise_are_seen(monkeypatch, simulate, repeat):
    """All nodes agree on twice the tokens of every rollout."""

    def twice(accounts, page, epoch, beacon, head, work):
        receipts = tuple(one._replace(tokens=2 * one.tokens) for one in work.receipts)
        apply(accounts, page, epoch, beacon, head, work._replace(receipts=receipts))

    apply = Accounts.apply
    monkeypatch.setattr(Accounts, "apply", twice)
    outcome = simulate(SMALL.replace("1.25", "2"))
    assert outcome.violation.rule == "equal-accounts"
    assert "has other accounts" in outcome.violation.what
    repeat(outcome)


def test_commits_that_are_decided_again_are_seen(monkeypatch, simulate, repeat):
    """Proposers and voters forget what earlier pages have decided."""
    monkeypatch.setattr(PageTree, "outcome", lambda *_: None)
    monkeypatch.setattr("protocol.replica.page_intake._fix_outcomes", lambda *_: None)
    monkeypatch.setattr(PageContents, "_with_open_slots", lambda _, commits, _parent: [*commits])
    outcome = simulate(SMALL.replace("1.25", "2"))
    assert outcome.violation.rule == "one-ledger"
    assert "again, after epoch" in outcome.violation.what
    repeat(outcome)


def test_a_node_that_never_counts_the_pages_that_it_missed_is_seen(monkeypatch, simulate):
    """``tests/simulations/cluster/test_accounts.py`` has such nodes without the bug."""

    async def nothing(_sync, _peer):
        """Pull nothing."""

    monkeypatch.setattr(LedgerSync, "pull", nothing)
    outcome = simulate(LATE)
    assert outcome.violation.rule == "equal-accounts"
    assert "has not counted the page" in outcome.violation.what
    assert outcome.violation.causes


# Digests


def test_a_transfer_that_does_not_check_digests_is_seen(monkeypatch, simulate):
    """A download passes each chunk to the blob store, which checks it."""

    def finish(arrival):
        arrival.on_complete(arrival, joined(arrival._here))

    assert simulate(BAD_RELAYS).violation is None
    monkeypatch.setattr(SimIncomingFile, "fits", lambda *_: True)
    monkeypatch.setattr(SimIncomingFile, "_finish", finish)
    outcome = simulate(BAD_RELAYS)
    assert outcome.violation.rule == "right-weights"
    assert not outcome.violation.node.startswith("relay")
    assert outcome.violation.causes


# Storage


def test_a_node_that_gives_up_a_body_too_early_is_seen(monkeypatch, simulate, repeat):
    assert simulate(SMALL).violation is None
    monkeypatch.setattr(RolloutBodies, "_is_done_with", lambda *_: True)
    outcome = simulate(SMALL)
    assert outcome.violation.rule == "stored-is-kept"
    assert "released the body" in outcome.violation.what
    repeat(outcome)


# Backoff


def test_a_router_that_forgets_who_pruned_it_is_seen(monkeypatch, simulate, repeat):
    assert simulate(CROWDED).violation is None
    monkeypatch.setattr(Mesh, "_back_off", lambda *_: None)
    outcome = simulate(CROWDED)
    assert outcome.violation.rule == "back-off"
    assert "asked for 60 s" in outcome.violation.what
    repeat(outcome)
