"""Planted bugs: the simulator detects a missing check of the daemon, and no other violation.

Each scenario passes unchanged. Then one check is removed from the daemon. The simulator must end
with the violated rule, its causes, and a command that repeats the same violation.
"""

import shlex
import time

import pytest

from node.cli import loading
from node.cli.main import main
from node.replication.rollout_bodies import RolloutBodies
from protocol.consensus.committee import Outcome, VerdictPool
from protocol.gossipsub.mesh import Mesh
from protocol.ledger.backpressure import Backpressure
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
minutes = 3
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
    monkeypatch.setattr("protocol.replica.replica.check_certificate", lambda *_: None)
    outcome = simulate(SMALL)
    assert outcome.violation.rule == "certified-only"
    assert "2 are needed" in outcome.violation.what
    repeat(outcome)


# Digests


def test_a_transfer_that_does_not_check_digests_is_seen(monkeypatch, simulate, repeat):
    """A download passes each chunk to the blob store, which checks it."""

    def finish(arrival):
        arrival.on_complete(arrival, joined(arrival._here))

    assert simulate(BAD_RELAYS).violation is None
    monkeypatch.setattr(SimIncomingFile, "fits", lambda *_: True)
    monkeypatch.setattr(SimIncomingFile, "_finish", finish)
    outcome = simulate(BAD_RELAYS)
    assert outcome.violation.rule == "right-weights"
    assert not outcome.violation.node.startswith("relay")
    repeat(outcome)


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
