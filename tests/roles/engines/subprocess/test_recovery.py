"""A worker whose engine process dies or hangs, with the real engine on a tiny model."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from protocol.messages import RolloutCommit
from protocol.rollout.body import decode_body
from roles.inference.flow import InferenceFlow
from tests.roles.engines.subprocess.engine_processes import BRISK, PROOFS, calls_of, eventually
from tests.roles.engines.tiny import CONFIG
from tests.worlds.flow_world import FlowWorld, Task
from tests.worlds.messages import found, set_outcome

RECOVERY_SECONDS = 60.0


class RealWorker:
    """An inference flow in real time over an engine process; its rollouts are certified at once."""

    def __init__(self, directory, made, policy):
        self.world = FlowWorld(
            directory,
            "worker 0",
            policy=policy,
            epochs={"seconds": 0.5, "record_epochs": 5000},
            model={"config": CONFIG, "dtype": "fp32"},
            toploc=PROOFS,
        )
        patience = replace(BRISK, silence_seconds=2.0)
        self.engine = made("generation", self.world.manifest, patience=patience)
        self._settled = 0
        self.world.run(InferenceFlow(self.world.context, self.engine, self.world.asked(Task())))

    @property
    def commits(self) -> list[RolloutCommit]:
        return [signed.message for signed in self.world.network.published]

    async def commit(self, more: int) -> None:
        """Wait for so many more commits, and certify each."""
        goal = len(self.commits) + more
        async with asyncio.timeout(RECOVERY_SECONDS):
            while len(self.commits) < goal:
                await asyncio.sleep(0.02)
                assert not self.world.task.done(), self.world.task
                self.world.replica.advance(self.world.now())
                for signed in self.world.network.published[self._settled :]:
                    certificate = self.world.world.certificate(signed)
                    set_outcome(self.world.replica.ledger, certificate, found())
                    self._settled += 1
                    self.world.changes.notify()

    def chain_is_whole(self) -> bool:
        """Return whether slots are unique and ordered."""
        slots = [commit.slot for commit in self.commits]
        return slots == list(range(len(slots)))


async def stopped_in_mid_rollout(worker) -> int:
    """Stop the process, and wait until it is requested to make a rollout."""
    pid = worker.engine.supervisor.pid
    os.kill(pid, signal.SIGSTOP)
    for signed in worker.world.network.published[worker._settled :]:
        set_outcome(worker.world.replica.ledger, worker.world.world.certificate(signed), found())
        worker._settled += 1
    worker.world.changes.notify()
    await eventually(lambda: calls_of(worker.engine) or worker.engine.supervisor.pid != pid)
    return pid


@pytest.mark.parametrize("kills", [True, False], ids=["killed", "hangs"])
async def test_a_worker_goes_on_with_the_same_slot(made, policies, tmp_path, kills):
    worker = RealWorker(tmp_path, made, policies[0])
    await worker.commit(2)
    reasons, set_condition = [], worker.world.conditions.set

    def noted(name, reason):
        """Note a condition, which the next success may clear before a look at it."""
        reasons.append(reason)
        set_condition(name, reason)

    worker.world.conditions.set = noted
    pid = await stopped_in_mid_rollout(worker)
    if kills:
        os.kill(pid, signal.SIGKILL)
    told = "was killed by signal 9" if kills else "no heartbeat for 2 s"
    await eventually(lambda: told in "; ".join(reasons))
    assert "trying again" in "; ".join(reasons)
    await worker.commit(2)
    assert str(worker.world.conditions) == ""
    assert worker.engine.supervisor.pid != pid
    assert worker.chain_is_whole()
    assert not worker.world.replica.ledger.workers.is_slashed(worker.world.signer.peer_id)
    for commit in worker.commits:
        body = await worker.world.context.blobs.get(commit.body)
        assert len(decode_body(body, worker.world.manifest)) == commit.sequences
    await worker.world.stop()
