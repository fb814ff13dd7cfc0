"""What checkers listen for is what simulations tell: a rule that hears nothing always holds."""

import time

import pytest

from simulations.checkers import Watch
from simulations.checkers.limits import LIMITS
from simulations.study.study import Plan, run_plan

EVERYTHING = """
name = "everything"
description = "As many nodes as make meshes full, most of which then go."
minutes = 1.25
[nodes]
relay = 2
trainer = 1
validator = 4
inference = 11
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
[[faults]]
kind = "crash"
minute = 0.6
nodes = {roles = ["inference"], count = 9}
"""


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """Return the facts of each kind of event in a simulation, and the watch that heard them."""
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
    assert run_plan(Plan(str(file), 1), clock=time.perf_counter).violation is None
    return facts, watches[0]


def test_every_event_and_message_that_a_checker_listens_for_is_told(heard):
    facts, watch = heard
    assert set(watch._events) <= set(facts)
    assert set(LIMITS) <= facts["sample"]
    kinds = {opened.kind for opened in watch.wire._by_digest.values()}
    assert set(watch._messages) <= kinds | {"*"}
    assert {"rollouts", "seconds"} <= facts["trained"]
    assert {"version", "claimed", "actual"} <= facts["policy-loaded"]
    for kind in ("graft", "prune", "prune-in"):
        assert {"peer", "topic"} <= facts[kind]
    assert "backoff" in facts["prune"] & facts["prune-in"]
    assert {"table", "key", "value"} <= facts["stored"]
    assert {"role", "peer", "behaviour", "restart"} <= facts["node-up"]
    assert "how" in facts["node-down"]
