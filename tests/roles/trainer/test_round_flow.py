"""Several trainers train at the same time: the leader's rounds, and the parts of the others."""

import asyncio

import pytest

from protocol.core.crypto import digest
from protocol.core.types import ValidationResult
from protocol.messages import RoundPlan, RoundResult, StepReport, seal
from protocol.shardcast.index import ShardIndex
from roles.ports.storage import StoredFile
from roles.trainer.round_flow import FETCH_SECONDS, REPORT_EPOCHS, RESULT_EPOCHS, RoundFlow
from tests.roles.trainer.trainer_world import EPOCH_SECONDS, World
from tests.worlds.flow_world import Policies, Trainer

pytestmark = pytest.mark.virtual

INNER_STEPS = 2
PER_STEP = 2
ANSWERS = 4
"""Of a rollout."""
STATE = {"state": digest(b"state"), "state_bytes": 5}


class RoundTrainer(Trainer):
    """Engine whose weights are a text: the outer version, and the steps since."""

    def __init__(self, genesis):
        super().__init__()
        self.outer, self.moved = genesis, 0
        self.texts = {digest(genesis): genesis}
        """Outer weights by policy digest."""
        self.applied = []
        """The contents of the differences of each outer step, in order."""
        self.fresh = False
        """True without outer momentum."""

    async def load_policy(self, policy):
        await super().load_policy(policy)
        self.outer, self.moved, self.fresh = self.texts[policy.digest], 0, True

    async def load_state(self, path, policy, newer=None):
        await super().load_state(path, policy, newer)
        if newer is not None:
            raise ValueError("the momentum is that of other weights")
        self.outer, self.moved, self.fresh = self.texts[policy], 0, False

    async def end_step(self):
        metrics = await super().end_step()
        self.moved += 1
        return metrics

    def _policy(self):
        assert not self.moved, "policies are those between rounds"
        return self.outer

    async def begin_round(self):
        self.moved = 0

    async def write_difference(self, path):
        content = b"%d steps of %d from " % (self.moved, len(self.begun)) + self.outer
        await self._write(path, "write_difference", content)
        return digest(content)

    async def check_difference(self, difference, path):
        content = path.read_bytes()
        if digest(content) != difference or not content.endswith(self.outer):
            raise ValueError(f"{path.name} is no difference")

    async def apply_differences(self, files):
        contents = []
        for difference, path in files:
            await self.check_difference(difference, path)
            contents.append(path.read_bytes())
        self.applied.append(contents)
        self.outer, self.moved = stepped(self.outer, contents), 0
        self.texts[digest(self.outer)] = self.outer


def stepped(outer, contents):
    """Return the weights after an outer step."""
    return digest(outer + b"".join(contents))


class SharedFiles(Policies):
    """Differences that any trainer serves, by index."""

    def __init__(self, flow_world):
        super().__init__(flow_world)
        self.served = {}
        self.retained = []

    async def publish_difference(self, path):
        content = path.read_bytes()
        index = digest(b"index" + content)
        self.served[index] = content
        return StoredFile(index, 10, ShardIndex(len(content), 100, 100, ()))

    async def fetch_difference(self, result, path):
        content = self.served.get(result.message.index)
        if content is not None:
            path.write_bytes(content)
        return content is not None

    async def retain_differences(self, version, indexes):
        self.retained.append((version, len(indexes)))


class RoundWorld(World):
    """Three trainers, of which the flow is one; the test plays the others."""

    def __init__(self, tmp_path, name="trainer 0", **options):
        outer = {"trainers": 3, "inner_steps": INNER_STEPS}
        grpo = {"rollouts_per_step": PER_STEP, "rollouts_ahead": 4, "outer": outer}
        super().__init__(tmp_path, name, trainers=3, grpo=grpo, begun=False, **options)
        self.policies = SharedFiles(self)
        object.__setattr__(self.context, "policies", self.policies)
        self.engine = RoundTrainer(b"policy 0")
        self.flow = RoundFlow(self.context, self.engine, self.asked(self.environment))

    async def led(self, *others):
        """Let the flow publish version 0, with other trainers live that report it."""
        for number in others:
            self.live(self.world.trainers[number], policy_version=-1)
        self.start()
        await self.rest(5)
        for number in others:
            self.report(number)

    def report(self, number):
        """Let a trainer confirm the newest version, if it has not."""
        head = self.replica.ledger.chain.head
        if self.replica.shadows.has_reported(self.world.trainers[number].peer_id, head.digest):
            return
        self.send(number, StepReport(manifest=head.digest, policy=head.message.policy))

    def send(self, number, message):
        """Receive a message of another trainer."""
        signed = seal(message, self.run_id, self.world.trainers[number])
        received = self.replica.receive(signed.envelope, self.now())
        assert received.result is ValidationResult.ACCEPT, received
        self.changes.notify()
        return signed

    def rollouts(self, trainers):
        """Accept the rollouts of a round of so many trainers."""
        return [self.rollout(worker=n % 2) for n in range(trainers * INNER_STEPS * PER_STEP)]

    def result(self, number, plan, content=None):
        """Let another trainer publish its result of a round."""
        outer = self.engine.outer
        content = b"result of %d from " % number + outer if content is None else content
        index = digest(b"index" + content)
        self.policies.served[index] = content
        message = RoundResult(
            plan=plan.digest,
            difference=digest(content),
            index=index,
            index_bytes=10,
            total_bytes=len(content),
        )
        self.send(number, message)
        return content

    def sent(self, kind):
        """Return the flow's signed messages of a kind."""
        return [one for one in self.network.published if isinstance(one.message, kind)]

    @property
    def head(self):
        return self.replica.ledger.chain.head.message

    async def planned(self, count=1):
        """Wait for a plan of the flow, and return it."""
        for _ in range(200):
            if len(self.sent(RoundPlan)) >= count:
                break
            await self.rest(1)
        return self.sent(RoundPlan)[-1]


async def test_a_leader_alone_makes_rounds_of_one(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led()
    batch = {one.digest for one in world.rollouts(1)}
    plan = await world.planned()
    await world.rest(2)
    assert plan.message.trainers == (0,)
    assert world.head.version == 1
    assert set(world.head.batch) == set(plan.message.batch) == batch
    assert [one.trainer for one in world.head.round.contributions] == [0]
    assert [len(one) // ANSWERS for one in world.engine.batches] == [PER_STEP] * INNER_STEPS
    assert world.head.policy == digest(world.engine.outer)


async def test_a_version_takes_the_differences_of_all_in_the_order_of_the_plan(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led(1, 2)
    world.rollouts(3)
    plan = await world.planned()
    assert plan.message.trainers == (0, 1, 2)
    second, first = world.result(2, plan), world.result(1, plan)
    await world.rest(2)
    assert world.head.version == 1
    assert [one.trainer for one in world.head.round.contributions] == [0, 1, 2]
    (contents,) = world.engine.applied
    assert contents[1:] == [first, second]
    assert contents[0].startswith(b"2 steps")


async def test_the_leader_trains_its_part_alone(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led(1, 2)
    world.rollouts(3)
    plan = await world.planned()
    world.result(1, plan)
    world.result(2, plan)
    await world.rest(2)
    assert len(plan.message.batch) == 3 * INNER_STEPS * PER_STEP
    assert [len(one) // ANSWERS for one in world.engine.batches] == [PER_STEP] * INNER_STEPS


async def test_a_silent_trainer_costs_one_round(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led(1, 2)
    world.rollouts(3)
    plan = await world.planned()
    world.result(1, plan)
    await world.rest((RESULT_EPOCHS + 1) * EPOCH_SECONDS)
    assert [one.trainer for one in world.head.round.contributions] == [0, 1]
    for trainers in ((0, 1), (0, 1, 2)):
        world.report(1)
        world.report(2)
        world.rollouts(len(trainers))
        count = len(world.sent(RoundPlan)) + 1
        plan = await world.planned(count)
        assert plan.message.trainers == trainers
        world.result(1, plan)
        if 2 in trainers:
            world.result(2, plan)
        await world.rest(2)


async def test_a_trainer_without_results_is_left_out_for_longer_and_longer(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led(1)
    while len(world.sent(RoundPlan)) < 10:
        if len(world.replica.ledger.backpressure.usable()) < 2 * INNER_STEPS * PER_STEP:
            world.rollouts(1)
        await world.rest(EPOCH_SECONDS)
        world.report(1)
    plans = [one.message.trainers for one in world.sent(RoundPlan)[:10]]
    without = [number for number, trainers in enumerate(plans, 1) if trainers == (0,)]
    assert without == [2, 4, 5, 7, 8, 9, 10]


async def test_a_trainer_that_has_not_repeated_a_version_is_awaited_and_left_out(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led(1)
    world.rollouts(2)
    plan = await world.planned()
    world.result(1, plan)
    await world.rest(2)
    world.rollouts(2)
    await world.rest(REPORT_EPOCHS * EPOCH_SECONDS / 2)
    assert len(world.sent(RoundPlan)) == 1
    await world.rest(REPORT_EPOCHS * EPOCH_SECONDS)
    assert world.sent(RoundPlan)[-1].message.trainers == (0,)


async def test_a_difference_that_cannot_be_right_is_left_out(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led(1, 2)
    world.rollouts(3)
    plan = await world.planned()
    world.result(1, plan, b"from other weights")
    world.result(2, plan)
    await world.rest(3)
    assert [one.trainer for one in world.head.round.contributions] == [0, 2]


async def test_a_result_without_its_file_is_left_out(tmp_path):
    world = RoundWorld(tmp_path)
    await world.led(1)
    world.rollouts(2)
    plan = await world.planned()
    world.result(1, plan)
    world.policies.served = {}
    await world.rest(FETCH_SECONDS + 5)
    assert [one.trainer for one in world.head.round.contributions] == [0]
    assert not world.context.conditions["trainer"]


# Trainers that do not lead


class FollowerWorld(RoundWorld):
    """Trainer 1 of three; trainer 0 leads."""

    def __init__(self, tmp_path, **sections):
        super().__init__(tmp_path, "trainer 1", **sections)
        genesis = self.manifest.genesis_policy
        self.take(self.world.checkpoint(None, policy=genesis, **STATE))
        self.hold(0, b"policy 0")
        self.policies.state = tmp_path / "published.state"
        self.times = 0

    def plan(self, trainers=(0, 1), **changes):
        """Let trainer 0 plan a round."""
        head = self.replica.ledger.chain.head
        self.times += 1
        message = RoundPlan(
            parent=head.digest,
            term=0,
            batch=tuple(one.digest for one in self.rollouts(len(trainers))),
            page=b"",
            omitted=(),
            trainers=trainers,
            planned_at=round(self.now() * 1000) + self.times,
        ).model_copy(update=changes)
        return self.send(0, message)

    def stated(self, version):
        """Return the fields of a published state, for the versions that have one."""
        return {} if version % self.manifest.shardcast.state_every else STATE

    def publish(self, plan, contents):
        """Let trainer 0 publish the version of a round, of these results."""
        results = self.replica.rounds.results(plan.digest)
        made_by = self.replica.rounds.training_round(plan, results)
        policy = digest(stepped(self.engine.outer, contents))
        message = plan.message
        signed = self.world.checkpoint(
            self.replica.ledger.chain.head,
            batch=message.batch,
            page=message.page,
            omitted=message.omitted,
            reloaded=message.reloaded,
            policy=policy,
            round=made_by,
            **self.stated(self.replica.ledger.chain.version + 1),
        )
        self.take(signed)
        self.changes.notify()
        return signed


async def follower(tmp_path, **sections):
    world = FollowerWorld(tmp_path, **sections)
    world.live(world.world.trainers[0])
    world.start()
    await world.rest(EPOCH_SECONDS)
    return world


async def test_a_trainer_makes_its_part_and_repeats_the_outer_step(tmp_path):
    world = await follower(tmp_path)
    assert [one.message.policy for one in world.sent(StepReport)] == [digest(b"policy 0")]
    plan = world.plan()
    leaders = world.result(0, plan)
    await world.rest(3)
    (result,) = world.sent(RoundResult)
    assert result.message.plan == plan.digest
    own = world.policies.served[result.message.index]
    assert [len(one) // ANSWERS for one in world.engine.batches] == [PER_STEP] * INNER_STEPS
    version = world.publish(plan, [leaders, own])
    await world.rest(3)
    assert world.engine.applied == [[leaders, own]]
    report = world.sent(StepReport)[-1].message
    assert (report.manifest, report.policy) == (version.digest, version.message.policy)
    assert world.context.shadow.confirmed == 1


async def test_a_trainer_learns_from_its_own_commits_of_the_batch(tmp_path):
    world = await follower(tmp_path)
    plan = world.plan(trainers=(0, 2, 1))
    await world.rest(3)
    learned = [one.prompt for batch in world.engine.batches for one in batch]
    assert len(learned) == ANSWERS * PER_STEP * INNER_STEPS
    fetched = [one for one, _ in world.network.asked]
    bodies = [
        world.replica.ledger.commits.known(one).commit.message.body
        for one in plan.message.batch[2::3]
    ]
    assert set(fetched) == set(bodies)


async def test_a_trainer_that_a_plan_does_not_name_waits(tmp_path):
    world = await follower(tmp_path)
    world.plan(trainers=(0, 2))
    await world.rest(EPOCH_SECONDS)
    assert not world.engine.batches
    assert not world.sent(RoundResult)


async def test_a_later_plan_replaces_one_and_begins_from_the_same_weights(tmp_path):
    world = await follower(tmp_path)
    world.plan()
    await world.rest(3)
    again = world.plan()
    await world.rest(3)
    first, second = world.sent(RoundResult)
    assert second.message.plan == again.digest
    assert second.message.difference == first.message.difference


async def test_a_round_that_ends_without_a_trainer_is_given_up(tmp_path):
    world = await follower(tmp_path)
    plan = world.plan()
    leaders = world.result(0, plan)
    await asyncio.sleep(0.1)
    world.publish(plan, [leaders])
    await world.rest(3)
    assert len(world.engine.batches) == 1
    assert not world.sent(RoundResult)
    assert world.context.shadow.confirmed == 1
    following = world.plan()
    await world.rest(3)
    (result,) = world.sent(RoundResult)
    assert result.message.plan == following.digest


async def test_a_round_after_a_lost_state_begins_without_momentum(tmp_path):
    world = await follower(tmp_path)
    assert not world.engine.fresh
    plan = world.plan(reloaded=True)
    leaders = world.result(0, plan)
    await world.rest(3)
    (result,) = world.sent(RoundResult)
    assert world.engine.fresh
    world.publish(plan, [leaders, world.policies.served[result.message.index]])
    await world.rest(3)
    assert world.context.shadow.confirmed == 1


async def test_a_version_of_other_weights_is_reported(tmp_path):
    world = await follower(tmp_path)
    plan = world.plan(trainers=(0, 2))
    leaders = world.result(0, plan)
    version = world.publish(plan, [leaders, b"something else"])
    await world.rest(3)
    report = world.sent(StepReport)[-1].message
    assert report.manifest == version.digest
    assert report.policy != version.message.policy
    assert world.context.shadow.differing == 1


async def test_a_trainer_in_a_round_takes_over_from_the_version_before(tmp_path):
    world = await follower(tmp_path)
    world.plan()
    await world.rest(3)
    loaded = list(world.engine.loaded)
    world.rollouts(1)
    await world.decide(1, world.replica.ledger.chain.head)
    plan = await world.planned()
    await world.rest(3)
    assert world.engine.loaded == loaded
    assert plan.message.trainers == (1,)
    assert not plan.message.reloaded
    first = world.replica.ledger.chain.get(1).message
    assert [one.trainer for one in first.round.contributions] == [1]


async def repeated(world, count):
    """Let trainer 0 publish versions that the flow repeats; nobody serves their states."""
    world.policies.state = None
    versions = []
    for _ in range(count):
        plan = world.plan(trainers=(0, 2))
        versions.append(world.publish(plan, [world.result(0, plan)]))
        await world.rest(3)
    assert world.context.shadow.confirmed == count
    return versions


async def led_after(world, version):
    """Let the flow lead from a version; return its first plan."""
    world.rollouts(1)
    await world.decide(1, version)
    await world.planned()
    await world.rest(3)
    return world.sent(RoundPlan)[0]


async def test_a_trainer_leads_from_its_own_state_of_a_version_before(tmp_path):
    """The last version of the former leader is not final, and nobody serves its states."""
    world = await follower(tmp_path)
    versions = await repeated(world, 2)
    plan = await led_after(world, versions[0])
    assert world.engine.loaded[-1] == world.files.state(1).name
    assert (plan.message.parent, plan.message.reloaded) == (versions[0].digest, False)
    assert world.replica.ledger.chain.get(2).message.term == 1


async def test_a_trainer_leads_from_a_repeated_version_after_an_older_state(tmp_path):
    world = await follower(tmp_path, shardcast={"state_every": 2})
    versions = await repeated(world, 4)
    plan = await led_after(world, versions[2])
    assert world.engine.loaded[-1] == world.files.state(2).name
    assert (plan.message.parent, plan.message.reloaded) == (versions[2].digest, False)


async def test_a_state_of_a_dropped_version_gives_way_to_that_of_the_one_in_its_place(tmp_path):
    world = FollowerWorld(tmp_path)
    world.live(world.world.trainers[0])
    plan = world.plan(trainers=(0, 2))
    version = world.publish(plan, [world.result(0, plan)])
    world.engine.texts[version.message.policy] = b"text of version 1"
    world.files.state(1).write_bytes(b"state")
    world.engine.states[world.files.state(1).name] = digest(b"another version 1")
    world.start()
    await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loaded == ["published.state"]
    assert world.context.shadow.version == 1


async def test_a_restarted_trainer_makes_no_second_result(tmp_path):
    world = await follower(tmp_path)
    plan = world.plan()
    await world.rest(3)
    await world.stop()
    world.flow = RoundFlow(world.context, world.engine, world.asked(world.environment))
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS)
    assert [one.message.plan for one in world.sent(RoundResult)] == [plan.digest]
    assert len(world.engine.batches) == INNER_STEPS


async def test_old_differences_are_released(tmp_path):
    world = await follower(tmp_path)
    for _ in range(3):
        plan = world.plan()
        leaders = world.result(0, plan)
        await world.rest(3)
        result = world.sent(RoundResult)[-1]
        world.publish(plan, [leaders, world.policies.served[result.message.index]])
        await world.rest(3)
    assert [version for version, _ in world.policies.retained] == [0, 1, 2]
    assert world.policies.retained[-1][1] == 4
