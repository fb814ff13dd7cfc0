"""A run is a function of its scenario and seed, in any process and under any hash seed.

The test detects iteration over sets of strings and draws from shared generators: string hashes
differ between processes, and earlier runs leave state behind.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from simulations.study.study import RunPlan, run_plan

QUIET = """
name = "small"
description = "Nothing goes wrong."
minutes = 1.2
signatures = "ed25519"
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 5
start_seconds = 4
[protocol.grpo]
rollouts_per_step = 2
"""

TROUBLED = """
name = "troubled"
description = "A bit of everything that can go wrong."
minutes = 3
skew_seconds_max = 1.0
[nodes]
relay = 3
trainer = 2
validator = 4
inference = 5
start_seconds = 4
[network]
loss = 0.01
[protocol.grpo]
rollouts_per_step = 2
[[churn]]
session = {kind = "weibull", shape = 0.6, scale_seconds = 120}
downtime = {kind = "exponential", mean_seconds = 10}
lose_state_share = 0.3
[[faults]]
kind = "partition"
minute = 0.4
seconds = 8
islands = [0.4]
[[faults]]
kind = "one-way"
minute = 0.7
seconds = 5
source = {share = 0.5}
target = {roles = ["validator"]}
[[faults]]
kind = "flash-crowd"
minute = 0.8
seconds = 5
count = 2
[[faults]]
kind = "crash"
minute = 0.9
nodes = {names = ["trainer-0"]}
return_after_seconds = 10
[[faults]]
kind = "rolling-restart"
minute = 1
nodes = {roles = ["relay"]}
pause_seconds = 4
[[adversaries]]
role = "inference"
behaviour = "forged-rewards"
count = 1
[[adversaries]]
role = "validator"
behaviour = "two-verdicts"
count = 1
[[adversaries]]
role = "relay"
behaviour = "bad-bytes"
count = 1
"""

SCENARIOS = {"quiet": QUIET, "troubled": TROUBLED}

IN_ANOTHER_PROCESS = """
import sys
from node.cli.main import main
for file in sys.argv[1:]:
    main(["simulate", "run", file, "--seed", "5", "--json"])
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("determinism"),  # one worker runs the compared runs once
]

REAL = ("wall_s", "peak_rss_mb")
"""Values of this machine, not of the simulation."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenarios")
    for name, text in SCENARIOS.items():
        (folder / f"{name}.toml").write_text(text)
    return {name: str(folder / f"{name}.toml") for name in SCENARIOS}


def numbers(result):
    return {key: value for key, value in result.items() if key not in REAL}


def run(file, seed=5):
    outcome = run_plan(RunPlan(file, seed), clock=time.perf_counter)
    # As a process prints it.
    return numbers(json.loads(json.dumps(outcome.result.to_json()))), outcome.series.moments


@pytest.fixture(scope="module")
def first(files):
    """Run each scenario once, in this process."""
    return {name: run(file) for name, file in files.items()}


def test_what_is_compared_is_a_life(first):
    for name, (result, moments) in first.items():
        assert result["violations"] == [], name
        assert result["rollouts"]["certified"] > 0
        assert result["versions_published"] > 0
        assert moments


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_again_in_the_same_process(first, files, name):
    assert run(files[name]) == first[name]


def test_the_same_in_another_process_under_another_hash_seed(first, files, tmp_path):
    code = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, *files.values()],
        env=os.environ | code | {"PYTHONHASHSEED": "1"},
        cwd=tmp_path,  # outside of the checkout, which would record a failure
        capture_output=True,
        check=True,
        text=True,
    )
    decoder, text = json.JSONDecoder(), done.stdout
    for name in SCENARIOS:
        result, end = decoder.raw_decode(text)
        text = text[end:].lstrip()
        assert numbers(result) == first[name][0], name
    assert not text


def test_another_seed_is_another_run(first, files):
    assert run(files["quiet"], 6)[0]["trace_digest"] != first["quiet"][0]["trace_digest"]
