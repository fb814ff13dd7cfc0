"""Two engine processes compute the same bits, so a trainer can check the steps of another one."""

import os
import signal

import pytest
import torch

from protocol.core.types import Version
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import write_policy
from roles.ports.engines import EngineError, Policy
from tests.roles.engines.subprocess.engine_processes import PROOFS
from tests.roles.engines.tiny import CONFIG
from tests.roles.engines.training.batches import batch_of
from tests.worlds.messages import run_manifest

STEPS = 5


class Leader:
    """A trainer that writes weights and a state after every step."""

    def __init__(self, engine, directory):
        self.engine, self.directory = engine, directory
        self.digests = []

    def state(self, version):
        return self.directory / f"v{version}.state"

    async def publish(self):
        version = len(self.digests)
        self.digests.append(await self.engine.write_policy(self.policy_path(version)))
        await self.engine.save_state(self.state(version))

    def policy_path(self, version):
        return self.directory / f"v{version}.safetensors"

    def policy(self, version):
        return Policy(Version(version), self.digests[version], self.policy_path(version))

    async def lead(self, policy):
        await self.engine.load_policy(policy)
        await self.publish()
        for seed in range(STEPS):
            await learn(self.engine, self.policy(max(0, seed - 1)), seed)
            await self.publish()


async def learn(engine, generating, seed):
    """Take a step from a batch of an older policy, as a trainer does in a rounded precision."""
    batch = await engine.recompute(generating, batch_of(seed))
    await engine.begin_step(batch)
    assert (await engine.end_step()).updates


@pytest.fixture(params=["fp32", "bf16"])
async def leader(request, made, tmp_path):
    dtype = request.param
    rounding = {} if dtype == "fp32" else {"rounding": "dither"}
    model = {"config": CONFIG, "dtype": dtype, **rounding}
    manifest = run_manifest(model=model, toploc=PROOFS)
    one = Leader(made("training", manifest), tmp_path)
    one.manifest = manifest
    await one.lead(genesis(dtype, tmp_path / "genesis"))
    assert len(set(one.digests)) == STEPS + 1
    return one


def genesis(dtype, path):
    torch.manual_seed(1)
    model = build_model(configuration("qwen2", CONFIG), torch.float32, "cpu")
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    tensors = {name: tensor.to(kind) for name, tensor in tensors_of(model).items()}
    return Policy(Version(0), write_policy(tensors, path, kind), path)


async def repeats(engine, leader, first):
    """Repeat the steps after a version, and compare each policy."""
    for seed in range(first, STEPS):
        await learn(engine, leader.policy(max(0, seed - 1)), seed)
        assert await engine.policy_digest() == leader.digests[seed + 1], f"version {seed + 1}"


@pytest.mark.parametrize("first", [0, 3])
async def test_a_shadow_gets_the_policies_of_the_leader_from_any_of_its_states(made, leader, first):
    shadow = made("training", leader.manifest)
    await shadow.load_state(leader.state(first), leader.digests[first])
    await repeats(shadow, leader, first)


async def test_a_leader_that_resumes_is_followed_by_a_shadow_that_did_not(made, leader, tmp_path):
    """The leader was killed, and went on from its newest state; the shadow from version 0."""
    again = Leader(made("training", leader.manifest), tmp_path / "again")
    again.directory.mkdir()
    await again.engine.load_state(leader.state(2), leader.digests[2])
    os.kill(again.engine.supervisor.pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        await again.engine.policy_digest()
    await again.engine.load_state(leader.state(2), leader.digests[2])
    await repeats(again.engine, leader, 2)


async def test_a_shadow_reloads_what_the_leader_has_reloaded(made, leader):
    """Weights of version 3 with the moments of version 1, and with none."""
    engines = [made("training", leader.manifest) for _ in range(2)]
    newer = leader.policy(3)
    for load in (
        lambda one: one.load_state(leader.state(1), leader.digests[1], newer),
        lambda one: one.load_policy(newer),
    ):
        digests = []
        for engine in engines:
            await load(engine)
            await learn(engine, leader.policy(2), 3)
            digests.append(await engine.policy_digest())
        assert digests[0] == digests[1]
        assert digests[0] != leader.digests[4], "a reloaded step is another one"


async def test_two_groups_of_ranks_get_the_same_policies_also_after_a_kill(made, tmp_path):
    """The group that replaces a killed one has no policy, and goes on from a state."""
    manifest = run_manifest(model={"config": CONFIG, "dtype": "fp32"}, toploc=PROOFS)
    one, other = (made("training", manifest, training_devices=("cpu",) * 2) for _ in range(2))
    assert one.ranks == 2
    first = Leader(one, tmp_path)
    await first.lead(genesis("fp32", tmp_path / "genesis"))
    assert len(set(first.digests)) == STEPS + 1
    await other.load_state(first.state(3), first.digests[3])
    os.kill(other.supervisor.pids[1], signal.SIGKILL)
    with pytest.raises(EngineError, match=r"rank 1 of 2: .*killed by signal 9"):
        await learn(other, first.policy(2), 3)
    with pytest.raises(EngineError, match="no policy is loaded"):
        await other.policy_digest()
    with pytest.raises(ValueError, match="does not hold the weights"):
        await other.load_state(first.state(3), first.digests[2])
    await other.load_state(first.state(3), first.digests[3])
    await repeats(other, first, 3)
