"""A text run founded by command, and a worker that joins with one address."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import tomlkit

from node.cli.main import main
from node.local.datadir import DataDir
from node.local.run_pin import load_run
from protocol.run.toml import load_recipe
from tests.roles.engines.huggingface import write_directory
from tests.worlds.leashed import leashed
from tests.worlds.messages import RECIPE
from tests.worlds.text import byte_tokenizer, needs_jail, write_rows

pytestmark = [pytest.mark.live, pytest.mark.slow, needs_jail, pytest.mark.xdist_group("founded")]
WITH_SHARED_ENGINES = [*pytestmark, pytest.mark.usefixtures("shared_engines")]
"""Marks of tests whose nodes share one fork server."""

PRIME_NODE = str(Path(sys.executable).with_name("prime-node"))
PATIENCE_SECONDS = 300.0
"""Timeout of steps that take seconds on an idle machine; no test measures it."""

ROWS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "pass_rate": n / 20} for n in range(21)]


class Node:
    """Node started from the command line; ``before`` is a command prefix."""

    engines = ()
    """Options of all nodes; without any, each starts a fork server of its own."""

    def __init__(self, directory, *arguments, host="127.0.0.1", before=()):
        self.data = DataDir(directory)
        self.log = directory.with_suffix(".log")
        options = ["--data-dir", str(directory), "--host", host, "--yes", *self.engines]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                leashed(*before, PRIME_NODE, *arguments, *options), stdout=log, stderr=log
            )

    def status(self):
        return json.loads(self.ask("/status"))

    def ask(self, path):
        port = json.loads(self.data.api.read_text())["port"]
        return self.read(f"http://127.0.0.1:{port}{path}")

    def read(self, url):
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def until(self, what):
        """Return the first non-empty value of ``what`` applied to the status."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends_at:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                if found := what(self.status()):
                    return found
            except (OSError, ValueError):
                pass
            time.sleep(0.3)
        raise AssertionError(f"{self.log.read_text()[-3000:]}\n{self.status()}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


def founded(tmp_path, admission=None, validators=1, epochs=None, **config):
    """Found a run of a tiny chat model and a few rows; return its directory.

    A committee is one validator.
    """
    config = {"vocab_size": 300, "eos_token_id": [256, 1]} | config
    model = write_directory(tmp_path / "model", **config)
    byte_tokenizer(model)
    values = load_recipe(RECIPE.read_text()).model_dump()
    values["environment"] = {"name": "math/sums", "pass_rates": [0.2, 0.8]}
    values["sampling"] |= {"group_size": 2, "prompts_per_rollout": 2}
    values["toploc"] |= {"mantissa_error_mean_max": 200.0}  # 28.8 was measured on another model
    values["committee"] |= {"size": 1, "escalated_size": 1}
    values["admission"] |= admission or {}
    values["epochs"] |= epochs or {}
    (tmp_path / "recipe.toml").write_text(tomlkit.dumps(values))
    rows = write_rows(tmp_path / "rows.parquet", ROWS)
    options = {"model": model, "recipe": tmp_path / "recipe.toml", "dataset": rows,
               "validators": validators, "out": tmp_path / "run"}  # fmt: skip
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    assert main(["run", "create", *arguments, "--uncalibrated", "--no-trial"]) == 0
    return tmp_path / "run"


def beginning(run, nodes):
    options = ("--role", "trainer", "--new-swarm", "--run", str(run / "run.toml"))
    nodes.append(Node(run / "trainer-1", *options))
    return nodes[0].until(lambda status: status["addresses"])[0]


@pytest.mark.usefixtures("shared_engines")
def test_an_untrusted_peer_joins_with_an_address_and_its_rollouts_are_certified(tmp_path, nodes):
    run = founded(tmp_path)
    address = beginning(run, nodes)
    nodes.append(Node(run / "validator-1", "--role", "validator", "--initial-peers", address))
    worker = Node(tmp_path / "untrusted", "--role", "inference", "--initial-peers", address)
    nodes.append(worker)
    worker.until(lambda status: status["yours"]["certified"] >= 2)
    assert worker.status()["yours"]["rejected"] == 0
    for name in ("bundle", "dataset"):
        given = (DataDir(run / "trainer-1").task / name).read_bytes()
        assert (worker.data.task / name).read_bytes() == given
    assert not list(worker.data.task.glob("*.partial"))


def test_a_testnet_goes_on_with_a_founded_run_and_with_its_successor(tmp_path):
    run = founded(tmp_path)
    first = swarm_of(run, steps=1)
    assert first["model"]["version"] >= 1
    written = (DataDir(run / "trainer-1").weights / "v1.safetensors").read_bytes()
    second = swarm_of(run, steps=first["model"]["version"] + 1)
    assert second["run_id"] == first["run_id"]
    assert second["model"]["version"] > first["model"]["version"]
    assert (DataDir(run / "trainer-1").weights / "v1.safetensors").read_bytes() == written
    assert (run / "swarm" / "model" / "config.json").exists()
    options = ("--data-dir", run / "trainer-1", "--out", tmp_path / "next", "--validators", "1")
    assert command("run", "succeed", *options, "--force", "--no-trial") == 0
    succeeded = load_run(tmp_path / "next" / "run.toml").manifest.genesis.predecessor
    assert succeeded.run_id == first["run_id"]
    assert succeeded.version >= 1
    third = swarm_of(tmp_path / "next", steps=1)
    assert third["run_id"] != first["run_id"]
    assert third["model"]["version"] >= 1
    for member in ("trainer-1", "validator-1"):
        old = ("--check", run / member)
        assert command("run", "show", tmp_path / "next" / "run.toml", *old) == 0


def command(*arguments):
    return main([str(one) for one in arguments])


def swarm_of(run, steps):
    """Run the swarm of a founded run until version ``steps``; return its report."""
    options = ("--run", run, "--steps", str(steps), "--inference", "1", "--no-view", "--json")
    done = subprocess.run(
        leashed(PRIME_NODE, "testnet", *options), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_a_testnet_refuses_a_directory_without_a_run(tmp_path, capsys):
    assert main(["testnet", "--run", str(tmp_path)]) == 2
    assert "has no run.toml; prime-node run create makes one" in capsys.readouterr().err
