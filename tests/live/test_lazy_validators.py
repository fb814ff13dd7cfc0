"""A testnet of real processes in which two of six validators do not check."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from node.testnet.plan import LAZY_KINDS
from tests.worlds.leashed import leashed

pytestmark = [pytest.mark.live, pytest.mark.long]

PRIME_NODE = str(Path(sys.executable).with_name("prime-node"))


def test_each_lazy_validator_loses_its_seat_and_no_honest_rollout_is_rejected():
    options = ("--validators", "4", "--lazy-validators", "2", "--steps", "80", "--minutes", "8")
    done = subprocess.run(
        leashed(PRIME_NODE, "testnet", *options, "--no-view", "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["cheaters"] == [{"kind": kind, "lost_seat": True} for kind in LAZY_KINDS]
    assert report["rollouts"]["certified"] > 0
    assert report["rollouts"]["rejected"] == 0
