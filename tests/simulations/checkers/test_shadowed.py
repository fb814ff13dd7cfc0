"""Rules of shadowed steps: altered versions, and the reports of trainers."""

import pytest

from tests.simulations.checkers.test_final_versions import chain_of_three

ALTERED = (bytes(31) + b"\2").hex()
"""Policy of version 2."""


@pytest.mark.parametrize(("head", "is_altered"), [(1, False), (2, True), (3, True)])
def test_no_altered_version_becomes_final(head, is_altered):
    run, versions = chain_of_three()
    run.emit("trainer", "policy-altered", digest=ALTERED)
    run.led(0, versions[head])
    assert run.rules_broken == (["no-altered-final"] if is_altered else [])
    assert all("version 2 " in one.what for one in run.violations)


@pytest.mark.parametrize("liar", ["", "trainer", "standby"])
@pytest.mark.parametrize("policy", [bytes(31) + b"\2", bytes(32)])
def test_honest_trainers_compute_equal_steps(liar, policy):
    run, versions = chain_of_three()
    if liar:
        run.dishonest(liar)
    manifest = run.digest(versions[2])
    report = run.envelope("step-report", "standby", manifest=manifest, policy=policy)
    run.stored(report, "standby", "relay")
    is_other = policy == bytes(32) and not liar
    assert run.rules_broken == (["equal-steps"] if is_other else [])


def test_a_report_about_an_unknown_version_is_no_violation():
    run, _ = chain_of_three()
    report = run.envelope("step-report", "standby", manifest=b"\7" * 32, policy=bytes(32))
    run.stored(report, "standby", "relay")
    assert run.violations == []
