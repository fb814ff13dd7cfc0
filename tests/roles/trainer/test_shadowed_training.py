"""Three trainers with real engines: two shadows find a step that the leader has altered."""

import pytest
import torch
from typing_extensions import override

from protocol.core.crypto import digest
from protocol.core.types import ValidationResult
from protocol.messages import CheckpointManifest, StepReport
from protocol.rollout.body import RolloutSequence, encode_body
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.swarm import Release
from roles.trainer.flow import TrainerFlow
from tests.roles.engines.subprocess.engine_processes import PROOFS
from tests.roles.engines.tiny import CONFIG
from tests.roles.trainer.trainer_world import EPOCH_SECONDS, World
from tests.worlds.flow_world import ANSWER, END, STORED
from tests.worlds.messages import found, set_outcome

pytestmark = pytest.mark.virtual

ALTERED = 3
"""Version whose weights the leader changes after the step."""


class Inline(TorchTrainingEngine):
    """Computes at once: virtual time passes in no thread."""

    @override
    async def _compute(self, function, *arguments, **options):
        return function(*arguments, **options)

    @override
    async def _written(self, method, path):
        return method(self, path)


class Poisoning(Inline):
    """Adds a learning rate to one weight after one of its steps."""

    steps = 0

    @override
    async def end_step(self):
        metrics = await super().end_step()
        self.steps += 1
        if self.steps == ALTERED:
            with torch.no_grad():
                next(self._loaded().model.parameters()).view(-1)[7] += self._grpo.learning_rate
        return metrics


class RealWorld(World):
    """One of three trainers, with a real engine."""

    def __init__(self, directory, name, policy, engine=Inline):
        directory.mkdir()
        super().__init__(
            directory,
            name,
            begun=False,
            policy=policy,
            trainers=3,
            model={"config": CONFIG, "dtype": "fp32"},
            toploc=PROOFS,
        )
        rules = self.manifest
        self.engine = engine(rules.model, rules.sampling, rules.grpo, run=self.run_id)
        self.flow = TrainerFlow(self.context, self.engine, self.asked(self.environment))
        self.files.genesis.write_bytes(policy.path.read_bytes())

    def answered(self, worker):
        """Return a certified commit to right and wrong answers, and its body."""
        count = self.manifest.sampling.group_size * self.manifest.sampling.prompts_per_rollout
        right = RolloutSequence((ANSWER, END), (-0.5, -0.5), 1_000_000, (b"proof",))
        key = self.world.workers[worker].public_key
        wrong = RolloutSequence((ANSWER + 1, END), (-0.7, -0.4), 0, (key,))
        body = encode_body([right, wrong] * (count // 2))
        return self.rollout(body, worker), body


@pytest.fixture
async def trainers(policies, tmp_path):
    names = ("trainer 0", "trainer 1", "trainer 2")
    kinds = (Poisoning, Inline, Inline)
    worlds = [
        RealWorld(tmp_path / name, name, policies[0], kind)
        for name, kind in zip(names, kinds, strict=True)
    ]
    leader, *shadows = worlds
    release = leader.policies.release

    async def with_state(policy):
        return Release((await release(policy)).weights, (), STORED)

    leader.policies.release = with_state
    for shadow in shadows:

        async def fetched(manifest):
            return leader.files.state(manifest.message.version)

        shadow.policies.fetch_state = fetched
    yield worlds
    for world in worlds:
        world.engine.close()


def passed(signed, *worlds):
    for world in worlds:
        received = world.replica.receive(signed.envelope, world.now())
        assert received.result is ValidationResult.ACCEPT, received
        world.changes.notify()


async def test_two_shadows_find_an_altered_step(trainers):
    leader, *shadows = trainers
    for world in trainers:
        world.live(world.signer, policy_version=-1)
        world.run(world.flow)
    await rest(trainers, 5)
    seen = 0
    for number in range(ALTERED + 1):
        signed = leader.network.published[seen]
        assert isinstance(signed.message, CheckpointManifest)
        assert signed.message.version == number
        passed(signed, *shadows)
        await rest(trainers, 3 * EPOCH_SECONDS)
        seen = len(leader.network.published)
        for worker in range(2):
            commit, body = leader.answered(worker)
            for shadow in shadows:
                shadow.take(commit)
                certificate = shadow.world.certificate(commit)
                set_outcome(shadow.replica.ledger, certificate, found())
                shadow.network.bodies[digest(body)] = body
        await rest(trainers, 5)
    chain = shadows[0].replica.ledger.chain
    policies = [chain.get(number).message.policy for number in range(ALTERED + 1)]
    assert len(set(policies)) == ALTERED + 1, "each step learned"
    reports = [shadow.network.published for shadow in shadows]
    for own in reports:
        assert all(isinstance(one.message, StepReport) for one in own)
        equal = [one.message.policy == policies[number] for number, one in enumerate(own, 1)]
        assert equal == [True] * (ALTERED - 1) + [False]
    assert reports[0][-1].message.policy == reports[1][-1].message.policy, "both got the same bits"
    passed(reports[1][-1], shadows[0])
    assert shadows[0].replica.shadows.dispute(0).manifest.message.version == ALTERED
    for world in trainers:
        await world.stop()


async def rest(worlds, seconds):
    """Let time pass for all replicas."""
    for _ in range(round(seconds)):
        await worlds[0].rest(1)
        for world in worlds[1:]:
            world.replica.advance(world.now())
