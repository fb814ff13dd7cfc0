"""A trainer that does not lead repeats the steps of the one that does."""

import pytest

from protocol.core.crypto import digest
from protocol.messages import CheckpointManifest, StepReport
from roles.ports.engines import EngineError
from roles.ports.storage import StorageFullError
from roles.trainer.batching import Batching
from roles.trainer.flow import TrainerFlow
from roles.trainer.shadowing import BEHIND_MAX, STUCK_EPOCHS
from tests.roles.trainer.trainer_world import EPOCH_SECONDS, World
from tests.worlds.flow_world import Trainer

pytestmark = pytest.mark.virtual

STATE = {"state": digest(b"state"), "state_bytes": 5}


class Steps(Trainer):
    """Makes of a state or of weights the version that follows them."""

    def __init__(self, genesis):
        super().__init__()
        self.policies = [genesis, *(digest(b"policy %d" % number) for number in range(1, 50))]
        self.wrong = ()
        """Versions that it computes otherwise than the leader."""

        self.refused = ()
        """Versions whose state it refuses."""
        self.tried = []
        """Versions of the states that were to be loaded."""

    async def load_state(self, path, policy, newer=None):
        self.tried.append(self.policies.index(policy))
        if self.tried[-1] in self.refused:
            raise ValueError("moments that no training makes")
        await super().load_state(path, policy, newer)
        self._begin(policy if newer is None else newer.digest)

    async def load_policy(self, policy):
        await super().load_policy(policy)
        self._begin(policy.digest)

    def _begin(self, policy):
        self.learned = self.policies.index(policy)

    def _policy(self):
        made = super()._policy()
        return b"another " + made if self.learned in self.wrong else made


class ShadowWorld(World):
    """Trainer 1 of three follows trainer 0, which publishes a state with each version."""

    def __init__(self, tmp_path, *, shadows=True, **sections):
        super().__init__(tmp_path, "trainer 1", begun=False, **{"trainers": 3} | sections)
        self.engine = Steps(self.manifest.genesis_policy)
        self.flow = TrainerFlow(
            self.context, self.engine, self.asked(self.environment), shadows=shadows
        )
        self.take(self.world.checkpoint(None, policy=self.manifest.genesis_policy, **STATE))
        self.policies.state = tmp_path / "published.state"

    def step(self, **changes):
        """Let trainer 0 publish the next version, from two new rollouts."""
        return self.version(*self.batch(), **STATE | changes)

    @property
    def reports(self) -> list[StepReport]:
        return [one.message for one in self.network.published if one.message.kind == "step-report"]

    @property
    def stated(self) -> list[tuple[int, bool]]:
        """The reported versions, each with whether the report confirms it."""
        chain = self.replica.ledger.chain
        found = [(chain.place(one.manifest), one.policy) for one in self.reports]
        return [(number, policy == chain.get(number).message.policy) for number, policy in found]

    @property
    def made(self) -> list[CheckpointManifest]:
        published = (one.message for one in self.network.published)
        return [one for one in published if isinstance(one, CheckpointManifest)]


async def begun(tmp_path, wrong=()):
    """Return the world of a shadow that has loaded a state; it computes some steps wrongly."""
    world = ShadowWorld(tmp_path)
    world.engine.wrong = wrong
    world.start()
    await world.rest(EPOCH_SECONDS)
    return world


async def test_a_trainer_repeats_each_step_and_reports_it(tmp_path):
    world = await begun(tmp_path)
    assert world.engine.loaded == ["published.state"]
    assert world.context.shadow.text == "shadowing, in step with version 0"
    for number in (1, 2, 3):
        world.step()
        await world.rest(5)
        assert world.stated == [(one, True) for one in range(1, number + 1)]
        assert world.context.shadow.text == f"shadowing, in step with version {number}"
    assert world.engine.loaded == ["published.state"], "it goes on from its own state"
    assert (world.context.shadow.confirmed, world.context.shadow.differing) == (3, 0)
    assert str(world.conditions) == ""
    await world.stop()


async def test_the_batch_is_that_of_the_leader_in_its_order(tmp_path):
    shadow = await begun(tmp_path)
    rollouts = shadow.batch()
    shadow.version(*rollouts[::-1], **STATE)
    await shadow.rest(5)
    (own,) = shadow.engine.batches
    prompts = shadow.manifest.sampling.prompts_per_rollout
    batching = Batching(shadow.context, shadow.engine, shadow.asked(shadow.environment))
    drawn = await batching.fetch(shadow.replica.ledger.chain.head.message.batch)
    assert list(drawn.commits) == [one.digest for one in rollouts[::-1]]
    groups = list(dict.fromkeys(item.group for item in own))
    assert groups == list(range(2 * prompts))
    first = drawn.rollouts[rollouts[1].digest]
    assert [item.tokens for item in own][: len(first)] == [item.tokens for item in first]
    await shadow.stop()


async def test_a_trainer_that_differs_says_so_and_begins_again_from_the_next_state(tmp_path):
    world = await begun(tmp_path, wrong=(2,))
    for _ in range(2):
        world.step()
        await world.rest(5)
    assert world.stated == [(1, True), (2, False)]
    assert world.reports[1].policy == digest(b"another policy 2")
    warning = world.context.shadow.warning
    leader = world.world.trainers[0].peer_id
    assert warning.startswith(f"version 2 of trainer …{leader[-6:]} differs from the step")
    assert str(world.conditions) == "", "it can work all the same"
    await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loaded == ["published.state"] * 2, "it returned to version 1"
    assert world.context.shadow.text == "shadowing, in step with version 1"
    assert len(world.reports) == 2
    world.step()
    await world.rest(2 * EPOCH_SECONDS)
    assert world.context.shadow.text == "shadowing, in step with version 3"
    world.step()
    await world.rest(EPOCH_SECONDS)
    assert world.stated == [(1, True), (2, False), (4, True)]
    assert world.context.shadow.warning == "", "it is in step again"
    assert (world.context.shadow.differing, world.context.shadow.newest_differing) == (1, 2)
    await world.stop()


async def test_steps_of_other_ranks_are_not_compared_and_their_states_are_loaded(tmp_path):
    """The run goes on: the other trainer publishes, and this one follows its states."""
    world = await begun(tmp_path, wrong=(2, 3))
    world.step()
    await world.rest(5)
    for number in (2, 3):
        world.step(ranks=2)
        await world.rest(2 * EPOCH_SECONDS)
        assert world.context.shadow.version == number, "it has the published state"
        assert world.context.shadow.text == (
            f"cannot compare: 2 ranks computed version {number}, this node has 1"
        )
    assert world.stated == [(1, True)]
    assert len(world.engine.batches) == 1
    assert world.context.shadow.differing == 0
    assert str(world.conditions) == ""
    world.step()
    await world.rest(5)
    assert world.stated == [(1, True), (4, True)]
    assert world.context.shadow.text == "shadowing, in step with version 4"
    await world.stop()


async def test_a_trainer_of_two_ranks_repeats_steps_of_two_and_states_them_of_its_own(tmp_path):
    world = ShadowWorld(tmp_path)
    world.engine.ranks = 2
    world.start()
    await world.rest(EPOCH_SECONDS)
    world.step(ranks=2)
    await world.rest(5)
    assert world.stated == [(1, True)]
    await world.decide(1, world.replica.ledger.chain.get(1))
    await world.rest(EPOCH_SECONDS)
    world.batch()
    await world.rest(5)
    assert [(one.version, one.ranks) for one in world.made] == [(2, 2)]
    await world.stop()


async def test_no_state_of_a_disputed_version_is_loaded(tmp_path):
    world = await begun(tmp_path, wrong=(2,))
    for _ in range(2):
        head = world.step()
        await world.rest(5)
    other = StepReport(manifest=head.digest, policy=digest(b"another policy 2"))
    world.take(world.world.sealed(other, world.world.trainers[2]))
    world.step()
    await world.rest(3 * EPOCH_SECONDS)
    assert world.context.shadow.text == "shadowing, in step with version 1"
    assert world.stated == [(1, True), (2, False)]
    final = world.replica.ledger.chain.get(1)
    loaded = len(world.engine.loaded)
    await world.decide(1, final)
    await world.rest(EPOCH_SECONDS)
    world.batch()
    await world.rest(5)
    made = world.made[0]
    assert (made.version, made.term, made.reloaded) == (2, 1, False)
    assert len(world.engine.loaded) == loaded, "it was ready to lead"
    await world.stop()


async def test_a_shadow_in_step_leads_without_loading_anything(tmp_path):
    world = await begun(tmp_path)
    head = world.step()
    await world.rest(5)
    await world.decide(1, head)
    await world.rest(5)
    world.batch()
    await world.rest(5)
    (made,) = world.made
    assert (made.version, made.term, made.parent) == (2, 1, head.digest)
    assert (made.policy, made.reloaded, made.moments) == (digest(b"policy 2"), False, -1)
    assert world.engine.loaded == ["published.state"]
    assert world.context.shadow.text == "", "it leads"
    await world.stop()


async def test_a_shadow_that_is_not_in_step_loads_the_newest_state_to_lead(tmp_path):
    world = await begun(tmp_path, wrong=(1,))
    head = world.step()
    await world.rest(5)
    world.engine.wrong = ()
    await world.decide(1, head)
    await world.rest(5)
    world.batch()
    await world.rest(5)
    assert world.engine.loaded[-1] == "published.state"
    assert [(one.version, one.policy) for one in world.made] == [(2, digest(b"policy 2"))]
    await world.stop()


async def test_leading_comes_before_the_step_in_progress(tmp_path):
    world = await begun(tmp_path)
    fetch = world.network.fetch_body

    async def slow(commit, sources):
        await world.decide(1, world.replica.ledger.chain.get(0))
        return await fetch(commit, sources)

    world.network.fetch_body = slow
    world.step()
    await world.rest(5 * EPOCH_SECONDS)
    world.network.fetch_body = fetch
    assert world.reports == []
    assert world.context.shadow.text == ""
    await world.stop()


async def test_a_step_from_reloaded_weights_is_repeated_from_the_same(tmp_path):
    """A trainer took over with the weights of version 2 and the moments of version 1."""
    world = await begun(tmp_path)
    for _ in range(2):
        world.step()
        await world.rest(5)
    world.hold(2, b"policy 2")
    world.step(reloaded=True, moments=1)
    await world.rest(5)
    assert world.engine.loaded == ["published.state", "published.state", "v2.safetensors"]
    assert world.stated == [(1, True), (2, True), (3, True)]
    world.hold(3, b"policy 3")
    world.step(reloaded=True, moments=-1)
    await world.rest(5)
    assert world.engine.loaded[3:] == ["v3.safetensors"]
    assert world.stated[3:] == [(4, True)]
    await world.stop()


async def test_a_leader_states_what_it_resumed_from(tmp_path):
    world = ShadowWorld(tmp_path, shadows=False, shardcast={"state_every": 3})
    world.version(*world.batch(), state=b"")
    head = world.version(*world.batch(), state=b"")
    world.hold(2, b"policy 2")
    world.start()
    await world.decide(1, head)
    await world.rest(EPOCH_SECONDS)
    assert world.engine.loaded == ["published.state", "v2.safetensors"]
    for _ in range(2):
        world.batch()
        await world.rest(5)
    stated = [(one.version, one.reloaded, one.moments) for one in world.made]
    assert stated == [(3, True, 0), (4, False, -1)]
    await world.stop()


async def test_a_missing_body_is_awaited_and_then_a_newer_state_loaded(tmp_path):
    world = await begun(tmp_path)
    lost = [world.rollout(worker=one, held=False) for one in range(2)]
    world.version(*lost, **STATE)
    await world.rest((STUCK_EPOCHS - 1) * EPOCH_SECONDS)
    assert world.engine.loaded == ["published.state"]
    await world.rest(2 * EPOCH_SECONDS)
    assert world.context.shadow.text == "shadowing, in step with version 1"
    assert world.reports == []
    world.step()
    await world.rest(5)
    assert world.stated == [(2, True)]
    await world.stop()


async def test_a_shadow_that_falls_behind_skips_versions(tmp_path):
    world = await begun(tmp_path)
    for _ in range(BEHIND_MAX + 1):
        world.step()
    await world.rest(5)
    assert world.context.shadow.version == BEHIND_MAX + 1
    assert world.stated == []
    await world.stop()


async def test_a_trainer_reports_once_about_a_version(tmp_path):
    """After a restart it repeats a step; with another result it would contradict itself."""
    world = ShadowWorld(tmp_path, shardcast={"state_every": 3})
    world.engine.wrong = (1,)
    world.version(*world.batch(), state=b"")
    head = world.replica.ledger.chain.head
    report = StepReport(manifest=head.digest, policy=head.message.policy)
    world.take(world.world.sealed(report, world.signer))
    world.start()
    await world.rest(EPOCH_SECONDS)
    assert world.context.shadow.newest_differing == 1
    assert world.reports == []
    await world.stop()


async def test_a_refused_state_is_loaded_once_and_an_older_one_instead(tmp_path):
    world = ShadowWorld(tmp_path)
    older = world.step()
    world.step()
    world.engine.refused = (2,)
    world.start()
    await world.rest(3 * EPOCH_SECONDS)
    assert world.engine.tried == [2, 1]
    assert world.stated == [(2, True)], f"from the state of version 1, {older.digest.hex()}"
    await world.stop()


async def test_failed_attempts_are_half_an_epoch_apart(tmp_path):
    """Whatever happens in the run meanwhile."""
    world = ShadowWorld(tmp_path)
    world.policies.state = None
    world.start()
    fetch, fetched = world.policies.fetch_state, []

    async def noted(manifest):
        fetched.append(manifest)
        return await fetch(manifest)

    world.policies.fetch_state = noted
    for _ in range(100):
        world.changes.notify()
        await world.rest(EPOCH_SECONDS / 20)
    assert 5 <= len(fetched) <= 11
    await world.stop()


async def test_a_failed_step_is_repeated_from_a_published_state(tmp_path):
    world = ShadowWorld(tmp_path)
    world.engine.errors["step"] = [EngineError("out of memory")]
    world.start()
    await world.rest(EPOCH_SECONDS)
    world.step()
    await world.rest(2)
    assert "shadow failed: out of memory" in str(world.conditions)
    await world.rest(2 * EPOCH_SECONDS)
    world.step()
    await world.rest(EPOCH_SECONDS)
    assert world.stated[-1] == (2, True)
    assert str(world.conditions) == ""
    await world.stop()


async def test_a_full_disk_is_told(tmp_path):
    world = ShadowWorld(tmp_path)
    world.policies.errors.append(StorageFullError("no room"))
    world.start()
    await world.rest(2)
    assert "disk full" in str(world.conditions)
    await world.rest(2 * EPOCH_SECONDS)
    assert world.context.shadow.version == 0
    await world.stop()


async def test_a_trainer_may_choose_not_to_shadow(tmp_path):
    world = ShadowWorld(tmp_path, shadows=False)
    world.start()
    await world.rest(EPOCH_SECONDS)
    world.step()
    await world.rest(EPOCH_SECONDS)
    assert world.engine.loaded == []
    assert world.reports == []
    assert world.context.shadow.text == ""
    await world.stop()
