"""Step logs of a real swarm's nodes, as the daemon writes them."""

import asyncio
import os
import threading

import pytest
from structlog.testing import capture_logs

from node.api.step_logs import base, writer
from node.api.step_logs.json_lines import JsonLines
from node.api.step_logs.writer import StepLogWriter, step_logs
from node.local.errors import NodeError
from roles.runtime.training_steps import STATISTICS, decoded
from tests.worlds.network import eventually, run_virtual
from tests.worlds.swarm import Swarm


@pytest.fixture(scope="module")
def swarm():
    """Return the contexts of a trainer and a validator after a crash of the trainer."""

    async def scenario():
        world = Swarm(validator=3, inference=2, grpo__steps=40)
        world.start_all()
        await world.reach(3)
        before = world.daemon().context.training.newest
        world.crash("trainer-0")
        await asyncio.sleep(2)
        world.start("trainer-0")
        await world.reach(6)
        contexts = [world.daemon(name).context for name in ("trainer-0", "validator-0")]
        await world.finish()
        return before, *contexts

    return run_virtual(scenario())


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)


async def logged(context, logs, until):
    """Write logs until ``until`` holds, then close them."""
    keeping = StepLogWriter(context, logs)
    keeping.start()
    await eventually(until, 30)
    await keeping.close()


def lines(path):
    return [decoded(line) for line in path.read_bytes().splitlines()] if path.exists() else []


async def test_a_trainer_logs_all_its_steps_also_those_before_it_was_killed(swarm, quick, tmp_path):
    before, trainer, _ = swarm
    version = trainer.replica.ledger.chain.version
    path = tmp_path / "steps.jsonl"
    for _ in range(2):  # the second start adds nothing
        await logged(trainer, step_logs(["jsonl"], tmp_path, trainer), lambda: lines(path))
    steps = lines(path)
    assert [step.version for step in steps] == list(range(1, version + 1))
    modelled = set(STATISTICS) - {"ranks", "memory_peak_bytes"}
    assert all(set(step.statistics) == modelled for step in steps if step.sequences_used)
    assert before == steps[before.version - 1]
    rewards = [
        entry.manifest.message.reward_mean for entry in trainer.replica.ledger.chain.checkpoints
    ]
    assert [round(1e6 * step.reward_mean) for step in steps] == rewards[1:]


async def test_another_node_logs_the_rewards_that_were_announced(swarm, quick, tmp_path):
    *_, validator = swarm
    path = tmp_path / "steps.jsonl"
    await logged(validator, step_logs(["jsonl"], tmp_path, validator), lambda: lines(path))
    assert {name for step in lines(path) for name in step.statistics} == {"reward_mean"}
    assert len(lines(path)) == validator.replica.ledger.chain.version


class Failing(JsonLines):
    """Log on a disk that is full at first, which truncates its writes."""

    def __init__(self, path, failures):
        super().__init__(path)
        self.failures = failures

    def write(self, steps):
        if self.failures:
            self.failures -= 1
            super().write(steps[:2])
            self._file.write(b'{"version": 3, "rew')
            raise OSError(28, os.strerror(28))
        super().write(steps)


async def test_a_log_that_fails_is_opened_again_and_nothing_is_doubled(swarm, quick, tmp_path):
    _, trainer, _ = swarm
    log = Failing(tmp_path / "failing.jsonl", failures=2)
    other = JsonLines(tmp_path / "other.jsonl")
    version = trainer.replica.ledger.chain.version
    await logged(
        trainer,
        {"failing": log, "other": other},
        lambda: not log.failures and len(lines(tmp_path / "other.jsonl")) == version,
    )
    assert lines(tmp_path / "failing.jsonl") == lines(tmp_path / "other.jsonl")


async def test_a_log_that_hangs_does_not_keep_the_node(swarm, quick, monkeypatch):
    _, trainer, _ = swarm
    monkeypatch.setattr(writer, "CLOSE_SECONDS", 0.05)
    released = threading.Event()

    class Hanging:
        def open(self):
            released.wait(30)
            return 0

    keeping = StepLogWriter(trainer, {"hanging": Hanging()})
    keeping.start()
    await asyncio.sleep(0.02)
    with capture_logs() as logs:
        await keeping.close()
    released.set()
    assert "step logs not closed in time" in [one["event"] for one in logs]


def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    base.require_libraries(["jsonl"])
    with pytest.raises(NodeError) as caught:
        base.require_libraries(["jsonl", "wandb"])
    assert caught.value.message == (
        "--log-to wandb: the package wandb is not installed here; "
        "run: pip install 'prime-node[wandb]'"
    )
    assert caught.value.exit_code == 78
