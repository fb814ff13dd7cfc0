"""Testnet of real processes, some of which are killed.

One swarm serves all steps, because its start takes most of the time. Each step waits for an effect
with a deadline; no test depends on the machine's speed below that.
"""

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.worlds.leashed import leashed

pytestmark = [pytest.mark.live, pytest.mark.slow]

PRIME_NODE = str(Path(sys.executable).with_name("prime-node"))


class Testnet:
    """A running ``prime-node testnet`` and the nodes in its directory."""

    __test__ = False

    def __init__(self, directory, ranks=1, options=()):
        self.directory = directory
        self.output = directory.with_suffix(".out")
        arguments = [
            "testnet",
            "--steps",
            "1000",
            "--minutes",
            "30",
            "--inference",
            "2",
            "--trainer-ranks",
            str(ranks),
            *options,
            "--keep",
            "--data-dir",
        ]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                leashed(PRIME_NODE, *arguments, directory),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def data_dir(self, name):
        return self.directory / "nodes" / name

    def endpoint(self, name):
        return json.loads((self.data_dir(name) / "api.json").read_text())

    def status(self, name):
        return status_at(self.data_dir(name))

    def kill(self, name):
        os.kill(self.endpoint(name)["pid"], signal.SIGKILL)

    def version(self, name="validator-2"):
        return self.status(name)["policy_version_newest"]

    def advances(self, versions=3, name="validator-2"):
        goal = self.version(name) + versions
        wait_for(lambda: self.version(name) >= goal, f"version {goal}")


def status_at(data_dir):
    port = json.loads((data_dir / "api.json").read_text())["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as answer:
        return json.load(answer)


PATIENCE_SECONDS = 240.0
"""Timeout of steps that take seconds on an idle machine; no test measures it."""


def wait_for(condition, what):
    started = time.monotonic()
    error = None
    while time.monotonic() - started < PATIENCE_SECONDS:
        try:
            if condition():
                return
        except OSError as failure:
            error = failure
        time.sleep(0.3)
    raise AssertionError(f"no {what} within {PATIENCE_SECONDS} s ({error})")


@contextmanager
def running(directory, **options):
    """Run a testnet until its first certificate and the end of the block."""
    swarm = Testnet(directory, **options)
    try:
        wait_for(lambda: swarm.status("validator-2")["rollouts"]["certified"] > 0, "certificate")
        yield swarm
    finally:
        swarm.process.send_signal(signal.SIGINT)
        try:
            swarm.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(swarm.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def testnet(tmp_path_factory):
    with running(tmp_path_factory.mktemp("testnet") / "swarm") as swarm:
        yield swarm


def memory_maps(pid):
    return Path(f"/proc/{pid}/maps").read_text()


def engines(testnet):
    """Return the engine processes, forked from the testnet's one fork server."""
    children = psutil.Process(testnet.process.pid).children()
    (server,) = (one for one in children if "roles.engines.subprocess.forkserver" in one.cmdline())
    return [one.pid for one in server.children()]


def test_no_daemon_holds_a_tensor(testnet):
    for name in ("relay-1", "trainer-1", "validator-1", "inference-1"):
        assert "libtorch" not in memory_maps(testnet.endpoint(name)["pid"])
    assert all("libtorch" in memory_maps(pid) for pid in engines(testnet))


def test_training_goes_on_when_every_engine_is_killed_and_one_hangs(testnet):
    killed = engines(testnet)
    assert len(killed) == 6
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    before = testnet.status("inference-1")["yours"]["certified"]
    testnet.advances()
    assert not set(engines(testnet)) & set(killed)
    for pid in engines(testnet)[:3]:
        os.kill(pid, signal.SIGSTOP)
    testnet.advances()
    wait_for(
        lambda: testnet.status("inference-1")["yours"]["certified"] > before,
        "certified rollout after its engine came back",
    )


def told(testnet, what):
    """Return a command that the testnet printed for copying."""
    return re.search(rf"^{what}: (.+)$", testnet.output.read_text(), re.MULTILINE).group(1)


def pasted(command, directory, **options):
    """Run a command in a shell without this project's environment, in any directory."""
    return subprocess.Popen(
        leashed("bash", "--noprofile", "--norc", "-c", command),
        cwd=directory, env={"HOME": str(directory)}, text=True, **options,
    )  # fmt: skip


def test_a_second_shell_joins_and_dies_without_harm(testnet, tmp_path):
    join, look = told(testnet, "join with"), told(testnet, "show its status with")
    assert "it ends with version 1000, or after 30 min" in testnet.output.read_text()
    with (tmp_path / "log").open("w") as log:
        joined = pasted(f"exec {join}", tmp_path, stdout=log, stderr=log)
    data_dir = Path(shlex.split(look)[-1])
    try:
        wait_for(
            lambda: status_at(data_dir)["yours"]["certified"] > 0,
            "certified rollout of the new node",
        )
        seen = pasted(look, "/", stdout=subprocess.PIPE)
        assert "certified" in seen.communicate(timeout=PATIENCE_SECONDS)[0]
        assert seen.returncode == 0
        assert "libtorch" not in memory_maps(joined.pid)
        log = (tmp_path / "log").read_text()
        assert [word for word in ("starting", '"ready"') if word not in log] == []
        again = pasted(f"sh {testnet.directory}/join.sh", "/", stderr=subprocess.PIPE)
        assert "is in use by process" in again.communicate(timeout=PATIENCE_SECONDS)[1]
        assert again.returncode == 73
    finally:
        joined.kill()
        joined.wait()
        shutil.rmtree(data_dir, ignore_errors=True)
    testnet.advances(1)  # the tests after this one wait for more


def copy_while_it_is_there(source, target):
    """Copy a file, unless the node has deleted it meanwhile, as it does with old versions."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def copied(source, target):
    """Copy a running node's data directory, as a restored backup."""
    beside = shutil.ignore_patterns("LOCK", "api.json", "state.sqlite*", "*.sock")
    shutil.copytree(source, target, ignore=beside, copy_function=copy_while_it_is_there)
    state = "state.sqlite"
    with (
        closing(sqlite3.connect(source / state)) as here,
        closing(sqlite3.connect(target / state)) as there,
    ):
        here.backup(there)


def joining(testnet, role, data_dir):
    """Start a node that joins the swarm, with its log beside its directory."""
    words = shlex.split(told(testnet, "join with"))
    options = dict(zip(words[1::2], words[2::2], strict=True))
    options |= {"--role": role, "--data-dir": str(data_dir), "--log-format": "json"}
    arguments = [word for option in options.items() for word in option]
    with data_dir.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(leashed(PRIME_NODE, *arguments), stdout=log, stderr=log)


def test_a_copy_of_a_node_refuses_to_work_beside_it(testnet, tmp_path):
    original, copy = testnet.data_dir("inference-1"), tmp_path / "copy"
    wait_for(lambda: status_at(original)["yours"]["certified"] > 0, "certified rollout")
    copied(original, copy)
    twin = joining(testnet, "inference", copy)
    try:
        assert twin.wait(PATIENCE_SECONDS) == 73
    finally:
        twin.kill()
    log = copy.with_suffix(".log").read_text()
    assert "another node uses our key" in log.rstrip().split("\n")[-1]
    assert "listening for another node with our key" in log
    assert [word for word in ("policy loaded", "rollout committed", '"ready"') if word in log] == []
    before = status_at(original)
    assert (before["state"], before["forks"]) == ("ready", [])
    certified = before["yours"]["certified"] + 3
    wait_for(
        lambda: status_at(original)["yours"]["certified"] >= certified,
        "certified rollouts of the original",
    )
    assert status_at(original)["yours"]["rejected"] == 0


def test_training_goes_on_without_a_validator(testnet):
    testnet.kill("validator-1")
    testnet.advances()


def test_training_goes_on_when_a_p2pd_is_killed(testnet):
    os.kill(testnet.status("inference-1")["p2pd_pid"], signal.SIGKILL)
    testnet.advances(1)
    before = testnet.status("inference-1")["yours"]["certified"]
    wait_for(
        lambda: testnet.status("inference-1")["yours"]["certified"] > before,
        "certified rollout after p2pd came back",
    )


def test_training_goes_on_without_the_relay(testnet):
    testnet.kill("relay-1")
    testnet.advances()


def digests(testnet):
    """Return the digests of the listed versions."""
    points = testnet.status("validator-2")["checkpoints"]
    return {point["version"]: point["digest"] for point in points}


def test_a_restarted_trainer_goes_on_from_the_last_version(testnet):
    testnet.kill("trainer-1")
    time.sleep(2)
    before = digests(testnet)
    command = (testnet.data_dir("trainer-1") / "command.txt").read_text()
    trainer = subprocess.Popen(
        leashed(PRIME_NODE, *shlex.split(command)[1:]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        testnet.advances(2)
        after = digests(testnet)
        listed = {version: digest for version, digest in before.items() if version in after}
        assert listed, "the lists have a version in common"
        assert listed.items() <= after.items(), "a version was published twice"
        assert list(after) == list(range(min(after), max(after) + 1))
        points = testnet.status("validator-2")["checkpoints"]
        assert sum(point["trained_without_certificate"] for point in points) == 0
        # A worker that dies right after its commit: its rollout is still settled.
        worker = testnet.status("inference-2")["peer_id"]
        testnet.kill("inference-2")

        def settled():
            counts = testnet.status("validator-2")["workers"][worker]
            return counts["committed"] == (
                counts["certified"] + counts["rejected"] + counts["expired"]
            )

        wait_for(settled, "outcome of the dead worker's rollouts")
        testnet.advances(2)
    finally:
        trainer.terminate()
        trainer.wait(PATIENCE_SECONDS)


def test_an_interrupt_drains_and_reports(testnet):
    testnet.process.send_signal(signal.SIGINT)
    assert testnet.process.wait(PATIENCE_SECONDS) == 0
    report = json.loads((testnet.directory / "report.json").read_text())
    assert report["trained_without_certificate"] == 0
    assert report["rollouts"]["rejected"] == 0
    assert max(report["peak_rss_mb"].values()) < 600
    model = testnet.directory / "model"
    assert (model / "model.safetensors").exists()
    assert f"prime-node chat --model {model}" in testnet.output.read_text()


def descendants(pid):
    return {each: each.name() for each in psutil.Process(pid).children(recursive=True)}


def test_nothing_of_a_killed_testnet_stays(tmp_path):
    """Nodes, their p2pd, fork servers and engines all end with the one process."""
    swarm = Testnet(tmp_path / "swarm")
    try:
        name = "inference-1"
        wait_for(lambda: swarm.status(name)["state"] == "ready", "node")
        below = descendants(swarm.process.pid)
        wait_for(lambda: "p2pd" in below.values(), "p2pd")
        assert len(below) > 2 * 7  # a node and its p2pd, seven times
    finally:
        swarm.process.kill()
        swarm.process.wait()
    _, left = psutil.wait_procs(list(below), timeout=PATIENCE_SECONDS)
    assert left == []


def ranks(testnet):
    """Return the processes that the trainer started last."""
    lines = (testnet.directory / "logs" / "trainer-1.log").read_text().splitlines()
    found = (json.loads(line) for line in lines if '"engine process started"' in line)
    return [one["pid"] for one in found if one["engine"] == "training"][-2:]


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_training_goes_on_when_a_rank_is_killed_or_hangs(tmp_path, fault):
    with running(tmp_path / "swarm", ranks=2) as testnet:
        loses_a_rank(testnet, fault)


def loses_a_rank(testnet, fault):
    before, known = ranks(testnet), digests(testnet)
    os.kill(before[1], fault)
    testnet.advances()
    assert not set(before) & set(engines(testnet)), "both ranks are replaced"
    assert set(ranks(testnet)) <= set(engines(testnet))
    after = digests(testnet)
    listed = {version: digest for version, digest in known.items() if version in after}
    assert listed.items() <= after.items(), "a version was published twice"
    assert list(after) == list(range(min(after), max(after) + 1))


def contributors(testnet):
    """Return the number of trainers in the newest version."""
    return len(testnet.status("validator-2")["checkpoints"][-1]["trainers"])


@pytest.mark.long
def test_trainers_train_together_and_go_on_without_one_of_them_and_without_the_leader(tmp_path):
    options = ("--trainers", "3", "--diloco")
    with running(tmp_path / "swarm", options=options) as testnet:
        wait_for(lambda: contributors(testnet) == 3, "version of three trainers")
        testnet.kill("trainer-2")
        testnet.advances()
        assert contributors(testnet) == 2
        command = (testnet.data_dir("trainer-2") / "command.txt").read_text()
        again = subprocess.Popen(
            leashed(PRIME_NODE, *shlex.split(command)[1:]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: contributors(testnet) == 3, "version with the restarted trainer")
            known = digests(testnet)
            testnet.kill("trainer-1")
            testnet.advances()
            assert contributors(testnet) == 2
            after = digests(testnet)
            settled = [one for one in known if one in after and one < max(known) - 1]
            assert all(known[one] == after[one] for one in settled), "no final version changes"
            assert list(after) == list(range(min(after), max(after) + 1))
            differing = [testnet.status(f"trainer-{n}")["shadow"]["differing"] for n in (2, 3)]
            assert differing == [0, 0], "every outer step has equal bits"
        finally:
            again.kill()
            again.wait()
