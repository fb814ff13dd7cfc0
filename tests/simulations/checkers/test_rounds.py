"""Rules of rounds: versions take what their trainers have signed for their own plan."""

import msgpack
import pytest

from tests.simulations.checkers.test_final_versions import TRAINERS
from tests.simulations.trace_examples import TraceExample


@pytest.fixture
def run():
    run = TraceExample(TRAINERS)
    run.up()
    return run


def changed(run, version, **changes):
    """Return a version with other fields in its round."""
    fields = msgpack.unpackb(msgpack.unpackb(version)["payload"])
    return run.envelope("checkpoint-manifest", "trainer", **fields | {"round": changes})


def test_a_version_of_a_round_breaks_no_rule(run):
    first = run.published(0)
    run.published(1, first, contributors=("trainer", "standby"))
    assert run.violations == []


def test_an_unsigned_result_is_found(run):
    first = run.published(0)
    version = run.checkpoint(1, first, contributors=("trainer", "standby"))
    made = msgpack.unpackb(msgpack.unpackb(version)["payload"])["round"]
    made["contributions"][1]["difference"] = bytes(32)
    run.spread(changed(run, version, **made))
    assert run.rules_broken == ["signed-results"]


def test_a_result_of_another_plan_is_found(run):
    first = run.published(0)
    version = run.checkpoint(1, first, contributors=("trainer",))
    other = run.checkpoint(1, first, policy=b"\3" * 32, contributors=("standby", "trainer"))
    made, others = (
        msgpack.unpackb(msgpack.unpackb(one)["payload"])["round"] for one in (version, other)
    )
    made["contributions"].append(others["contributions"][0])
    run.spread(changed(run, version, **made))
    assert run.rules_broken == ["planned-round"]


def test_other_trainers_than_the_planned_ones_are_found(run):
    first = run.published(0)
    version = run.checkpoint(1, first, contributors=("trainer", "standby"))
    made = msgpack.unpackb(msgpack.unpackb(version)["payload"])["round"]
    run.spread(changed(run, version, **made | {"trainers": [0]}))
    assert run.rules_broken == ["planned-round"]


@pytest.mark.parametrize("honest", [True, False])
def test_an_honest_trainer_signs_one_result_for_a_plan(run, honest):
    if not honest:
        run.dishonest("standby")
    for number in range(2):
        fields = {"plan": b"\1" * 32, "difference": bytes([number]) * 32}
        run.stored(run.envelope("round-result", "standby", **fields), "standby")
    assert run.rules_broken == (["one-result"] if honest else [])
