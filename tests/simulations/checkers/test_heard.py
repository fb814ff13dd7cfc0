"""Event kinds of checkers exist in real traces: a rule without events would always hold."""

import time

import pytest

from protocol import messages
from simulations.checkers import Watch
from simulations.checkers.limits import LIMITS
from simulations.study.study import RunPlan, run_plan

EVERYTHING = """
name = "everything"
description = "Meshes become full, some nodes go, versions are learned and the oldest let go."
minutes = 2
[nodes]
relay = 2
trainer = 2
validator = 4
inference = 11
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
[protocol.grpo.outer]
trainers = 2
inner_steps = 1
[protocol.shardcast]
versions_kept = 4
[[faults]]
kind = "crash"
minute = 1
nodes = {roles = ["inference"], count = 5}
"""


def protocol_kinds():
    return [one.kind for one in vars(messages).values() if hasattr(one, "kind")]


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """Return the facts of each kind of event in a simulation, and the watch that received them."""
    facts: dict[str, set[str]] = {}
    watches = []
    see = Watch.see

    def listen(watch, event):
        watches[:] = [watch]
        facts.setdefault(event.kind, set()).update(event.facts)
        see(watch, event)

    monkeypatch.setattr(Watch, "see", listen)
    file = tmp_path / "scenario.toml"
    file.write_text(EVERYTHING)
    assert run_plan(RunPlan(str(file), 1), clock=time.perf_counter).violation is None
    return facts, watches[0]


def test_every_event_and_message_that_a_checker_listens_for_is_told(heard):
    facts, watch = heard
    dishonest = {"policy-poisoned", "policy-altered"}  # no trainer is so here
    assert set(watch._events) - dishonest <= set(facts)
    assert set(LIMITS) <= facts["sample"]
    assert set(watch._messages) <= {*protocol_kinds(), "*"}
    assert {"rollouts", "seconds"} <= facts["trained"]
    assert {"version", "claimed", "actual"} <= facts["policy-loaded"]
    for kind in ("graft", "prune", "prune-in"):
        assert {"peer", "topic"} <= facts[kind]
    assert "backoff" in facts["prune"] & facts["prune-in"]
    assert {"table", "key", "value"} <= facts["stored"]
    assert {"role", "peer", "behaviour", "restart"} <= facts["node-up"]
    assert "how" in facts["node-down"]
