"""The published client of shardcast 0.3.2, downloading a version from our nodes.

It runs in a separate environment, ``.venv-shardcast`` (``make shardcast``) or that of
``SHARDCAST_PYTHON``, and calls ``wget``.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from node.testnet.fleet import free_port
from tests.live.test_founded_run import Node, founded
from tests.worlds.text import needs_jail

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SHARDCAST_PYTHON", ROOT / ".venv-shardcast" / "bin" / "python"))

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no shardcast: {PYTHON} (make shardcast)"),
    pytest.mark.skipif(shutil.which("wget") is None, reason="shardcast's client runs wget"),
    needs_jail,
]

CLIENT = """
import sys
from shardcast.client_node import ClientNode
node = ClientNode(sys.argv[3:], sys.argv[2])
print(node.list_available_versions())
assert node.download_version(sys.argv[1]), "its own check fails"
"""


def test_its_client_downloads_a_version_from_any_node_and_its_own_check_passes(tmp_path, nodes):
    run, ports = founded(tmp_path), (free_port(), free_port())
    beginning = ("--new-swarm", "--run", str(run / "run.toml"), "--http-port", str(ports[0]))
    trainer = Node(run / "trainer-1", "--role", "trainer", *beginning)
    nodes.append(trainer)
    address = trainer.until(lambda status: status["addresses"])[0]
    joining = ("--initial-peers", address, "--http-port", str(ports[1]))
    relay = Node(tmp_path / "relay", "--role", "relay", *joining)
    nodes.append(relay)
    relay.until(lambda status: status["policy_version"] >= 0)
    servers = [f"http://127.0.0.1:{port}" for port in ports]
    for number, chosen in enumerate((servers[1:], servers)):
        target = tmp_path / f"downloads-{number}"
        done = subprocess.run(
            [str(PYTHON), "-c", CLIENT, "v0", str(target), *chosen],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        got = (target / "download_v0.bin").read_bytes()
        assert got == (relay.data.weights / "v0.safetensors").read_bytes()
        assert got == (trainer.data.weights / "v0.safetensors").read_bytes()
