"""Real nodes of a run with proof of work, and of a run with invites."""

import subprocess

from node.local.errors import ExitCode
from tests.live.test_founded_run import PRIME_NODE, WITH_SHARED_ENGINES, Node, beginning, founded

pytestmark = WITH_SHARED_ENGINES

WORK = {
    "rule": "open",
    "work_bits": 9,
    "work_kib": 1024,
    "probation_epochs": 1,
    "settled_epochs": 5,
}
"""A second of work; a proof counts after all nodes could receive it, and 5 seconds more."""


def test_an_untrusted_peer_works_its_way_in_and_its_rollouts_are_certified(tmp_path, nodes):
    run = founded(tmp_path, admission=WORK)
    address = beginning(run, nodes)
    nodes.append(Node(run / "validator-1", "--role", "validator", "--initial-peers", address))
    worker = Node(tmp_path / "untrusted", "--role", "inference", "--initial-peers", address)
    nodes.append(worker)
    own = worker.until(lambda status: status["peer_id"])
    nodes[0].until(lambda status: own in {member["peer_id"] for member in status["members"]})
    assert "admission proof found" in worker.log.read_text()
    worker.until(lambda status: status["yours"]["certified"])
    worker.stop()
    again = Node(tmp_path / "untrusted", "--role", "inference", "--initial-peers", address)
    nodes.append(again)
    again.until(lambda status: status["yours"]["certified"] >= 2)
    assert "admission proof found" not in again.log.read_text(), "it is kept"


def test_an_untrusted_peer_is_told_to_get_an_invite_and_comes_with_it(tmp_path, nodes):
    run = founded(tmp_path, admission={"rule": "invite"})
    address = beginning(run, nodes)
    data_dir = tmp_path / "untrusted"
    command = [PRIME_NODE, "--role", "relay", "--initial-peers", address]
    command += [
        "--data-dir",
        str(data_dir),
        "--host",
        "127.0.0.1",
        "--log-level",
        "error",
        "--yes",
    ]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert refused.returncode == ExitCode.CONFIG
    assert "start again with --invite TOKEN" in refused.stderr.splitlines()[-1]

    def tool(*arguments):
        done = subprocess.run([PRIME_NODE, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    own = tool("id", "--data-dir", str(data_dir))
    key = ("--run", str(run / "run.toml"), "--key", str(run / "creator.key"))
    (tmp_path / "invite").write_text(tool("invite", own, *key))
    joining = ("--role", "relay", "--initial-peers", address)
    nodes.append(Node(data_dir, *joining, "--invite", str(tmp_path / "invite")))
    nodes[0].until(lambda status: own in {member["peer_id"] for member in status["members"]})
    nodes[-1].stop()
    (tmp_path / "invite").unlink()
    nodes.append(Node(data_dir, *joining))
    nodes[-1].until(lambda status: status["state"] == "ready")
