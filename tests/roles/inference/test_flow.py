import pytest

from protocol.core.crypto import digest
from protocol.ledger.commits import window_epochs
from protocol.membership.proof_of_work import work_proof
from protocol.messages import RolloutCommit
from protocol.rollout.assignment import assign
from protocol.rollout.body import decode_body
from roles.inference.flow import REPEAT_EPOCHS, InferenceFlow
from roles.inference.slot_choice import SKIPS_MAX, TRIES_MAX, UNSETTLED_MIN
from roles.ports.engines import EngineError
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.retry import PAUSE_EPOCHS_MAX
from tests.worlds.flow_world import Engine, FlowWorld, Task, Unsure
from tests.worlds.messages import found, set_outcome

pytestmark = pytest.mark.virtual

EPOCH_SECONDS = 10.0
TARGETS = {"length_targets": (7, 9), "length_penalty": 0.1, "tokens_max": 8}


def started(tmp_path, **options):
    world = FlowWorld(tmp_path, "worker 0", **options)
    engine = Engine()
    return world, engine, InferenceFlow(world.context, engine, world.asked(Task()))


def commits(world) -> list[RolloutCommit]:
    return [signed.message for signed in world.network.published]


def settle(world, signed):
    set_outcome(world.replica.ledger, world.world.certificate(signed), found())
    world.changes.notify()


async def test_slots_are_used_in_order_and_no_more_than_two_are_open(tmp_path):
    world, engine, flow = started(tmp_path)
    world.run(flow)
    await world.rest(20)
    assert [item.slot for item in commits(world)] == [0, 1]
    assert len(commits(world)) == UNSETTLED_MIN
    first = world.network.published[0]
    body = await world.context.blobs.get(first.message.body)
    sequences = decode_body(body, world.manifest)
    assert len(body) == first.message.body_bytes
    assert sum(len(item.tokens) for item in sequences) == first.message.tokens
    assert all(item.reward == 1_000_000 for item in sequences)
    settle(world, first)
    await world.rest(2)
    assert [item.slot for item in commits(world)] == [0, 1, 2]
    assert engine.loads == [0]
    await world.stop()


async def test_it_waits_for_a_policy_and_for_synchronisation(tmp_path):
    world, _, flow = started(tmp_path)
    policy = world.policies.held.pop(0)
    world.run(flow)
    await world.rest(15)
    assert commits(world) == []
    world.network.synchronised = False
    world.policies.held[0] = policy
    await world.rest(15)
    assert commits(world) == [], "its ledger may lack its own slots"
    world.network.synchronised = True
    await world.rest(15)
    assert commits(world)
    await world.stop()


async def test_it_waits_while_the_council_makes_no_page(tmp_path):
    world, _, flow = started(tmp_path)
    policy = world.policies.held.pop(0)
    world.run(flow)
    await world.rest(2 * EPOCH_SECONDS + 1)
    world.pages.stop()
    patience_epochs = world.manifest.committee.escalate_after_epochs
    await world.rest((patience_epochs - 1) * EPOCH_SECONDS)
    assert world.context.epoch() == 2 + patience_epochs - 1
    world.policies.held[0] = policy
    world.changes.notify()
    await world.rest(EPOCH_SECONDS / 2)
    assert commits(world), "pages may be late"
    assert str(world.conditions) == ""
    world.policies.held.clear()
    await world.rest(EPOCH_SECONDS)
    before = len(commits(world))
    for signed in list(world.network.published):
        settle(world, signed)
    world.policies.held[0] = policy
    await world.rest(EPOCH_SECONDS)
    assert len(commits(world)) == before, "nobody could be drawn to check it"
    assert str(world.conditions) == (
        f"no page of the council for {patience_epochs + 1} epochs, so no committee can be drawn; "
        "waiting. Check this node's connections and clock; if they are good, more than two thirds "
        "of the council must be on line"
    )
    world.pages.write(world.context.epoch())
    await world.rest(EPOCH_SECONDS)
    assert len(commits(world)) > before
    assert str(world.conditions) == ""
    await world.stop()


async def test_a_stale_policy_and_a_finished_run_are_left_alone(tmp_path):
    world, _, flow = started(tmp_path, grpo={"steps": 4, "async_level": 2})
    for _ in range(3):
        world.version()
    world.run(flow)
    await world.rest(15)
    assert commits(world) == [], "version 0 is more than two behind"
    world.hold(1, b"policy 1")
    world.changes.notify()
    await world.rest(5)
    assert {item.version for item in commits(world)} == {1}
    before = len(commits(world))
    world.version()
    for signed in list(world.network.published):
        settle(world, signed)
    world.hold(4, b"policy 4")
    await world.rest(15)
    assert len(commits(world)) == before
    await world.stop()


async def test_the_last_version_is_evaluated_though_nothing_is_wanted(tmp_path):
    rule = {"every_versions": 2, "rollouts_per_worker": 1}
    world, _, flow = started(tmp_path, grpo={"steps": 4, "async_level": 2}, evaluation=rule)
    for version in range(1, 5):
        world.version()
        world.hold(version, f"policy {version}".encode())
    world.run(flow)
    await world.rest(15)
    assert [(item.version, item.slot, item.evaluation) for item in commits(world)] == [(4, 0, True)]
    await world.stop()


async def test_a_slashed_worker_rests(tmp_path):
    world, _, flow = started(tmp_path)
    world.run(flow)
    await world.rest(2)
    signed = world.network.published[0]
    set_outcome(
        world.replica.ledger,
        world.world.certificate(signed, accepted=False, escalated=True),
        found("computation"),
    )
    before = len(commits(world))
    world.changes.notify()
    await world.rest(30)
    assert len(commits(world)) == before
    await world.stop()


async def test_a_policy_that_the_engine_refuses_is_handed_back(tmp_path):
    world, engine, flow = started(tmp_path)
    world.version()
    engine.refused[digest(b"policy 1")] = None
    world.hold(1, b"policy 1")
    world.run(flow)
    await world.rest(15)
    assert world.policies.discarded == [1]
    assert {item.version for item in commits(world)} == {0}
    await world.stop()


async def test_a_version_superseded_while_it_was_loaded_is_not_used(tmp_path):
    """Otherwise the old weights would answer the new version's prompts."""
    world, engine, flow = started(tmp_path, trainers=2)
    genesis = world.replica.ledger.chain.head
    old = world.version()
    world.hold(1, b"policy 1")

    def supersede():
        engine.on_load = lambda: None
        new = world.world.checkpoint(genesis, 1, term=1, policy=digest(b"another"))
        world.adopt(new)
        del world.policies.held[1]

    engine.on_load = supersede
    world.run(flow)
    await world.rest(15)
    assert old.digest not in [item.checkpoint for item in commits(world)]
    assert {item.version for item in commits(world)} == {0}
    await world.stop()


async def test_a_full_disk_is_told_and_waited_for(tmp_path):
    world, _, flow = started(tmp_path)
    world.context.blobs.full = True
    world.run(flow)
    await world.rest(20)
    assert "disk full" in str(world.conditions)
    world.context.blobs.full = False
    world.network.errors.append(StorageFullError("the store"))
    await world.rest(20)
    assert [item.slot for item in commits(world)] == [0, 1]
    assert str(world.conditions) == ""
    await world.stop()


async def test_a_refused_commit_is_told_and_tried_again_later(tmp_path):
    world, engine, flow = started(tmp_path)
    generate, calls = engine.generate, []

    async def counted(*arguments):
        calls.append(world.now())
        world.changes.notify()  # other changes meanwhile
        return await generate(*arguments)

    engine.generate = counted
    world.network.errors += [RefusedError("not now")] * 3
    world.run(flow)
    await world.rest(4)
    assert "commit refused: not now" in str(world.conditions)
    assert len(calls) == 1
    await world.rest(30)
    assert [item.slot for item in commits(world)] == [0, 1]
    await world.stop()


async def test_what_has_no_outcome_is_told_again(tmp_path):
    """Possibly no peer received it."""
    world, _, flow = started(tmp_path)
    own = world.world.commit(world.signer, checkpoint=world.replica.ledger.chain.head.digest)
    other = world.world.commit(
        world.world.workers[1], checkpoint=world.replica.ledger.chain.head.digest
    )
    world.take(own)
    world.take(other)
    world.network.synchronised = False
    world.run(flow)
    await world.rest(5.5)
    assert world.network.announced == []
    world.network.synchronised = True
    await world.rest(6)
    assert world.network.announced == [own.envelope]
    published = world.network.published[0].envelope
    await world.rest(REPEAT_EPOCHS * EPOCH_SECONDS + 4)
    assert world.network.announced.count(own.envelope) == 2
    assert world.network.announced.count(published) == 1
    await world.rest(5 * EPOCH_SECONDS)
    window = window_epochs(world.manifest)
    assert world.network.announced.count(own.envelope) == window, "nobody would judge it now"
    assert world.network.announced.count(published) <= window
    await world.stop()


async def test_a_worker_that_lost_its_disk_leaves_out_what_it_may_have_used(tmp_path):
    rule = {"every_versions": 1, "rollouts_per_worker": 1}
    world, _, flow = started(tmp_path, evaluation=rule)
    world.network.first_slot = None
    world.run(flow)
    await world.rest(20)
    assert commits(world) == []
    assert "the disk was lost" in world.context.conditions["inference"]
    world.network.first_slot, world.network.evaluated_up_to = 40, 0
    await world.rest(20)
    assert [(item.version, item.slot) for item in commits(world)] == [(0, 40), (0, 41)]
    assert world.context.conditions["inference"] == ""
    for signed in world.network.published:
        settle(world, signed)
    world.version(policy=world.hold(1, b"policy 1").digest)
    await world.rest(20)
    made = [(item.version, item.slot, item.evaluation) for item in commits(world)[2:]]
    assert made == [(1, 0, True), (1, 42, False)]
    await world.stop()


async def test_prompts_say_how_long_the_answer_should_become(tmp_path):
    world, engine, flow = started(tmp_path, sampling=TARGETS)
    world.run(flow)
    await world.rest(2)
    commit = world.network.published[-1]
    items = assign(world.manifest, commit.signer, 1)
    assert {item.length_target for item in items} <= {7, 9}
    assert engine.prompts == [Task().prompt(i.problem_seed, i.length_target) for i in items]
    body = await world.context.blobs.get(commit.message.body)
    rewards = [item.reward for item in decode_body(body, world.manifest)]
    assert rewards == [500_000 - 100_000 * (item.length_target - 7) for item in items]
    await world.stop()


@pytest.mark.parametrize("where", ["generate", "load", "score"])
async def test_what_breaks_pauses_the_worker_and_is_tried_again(tmp_path, where):
    world, engine, flow = started(tmp_path)
    broken = [EngineError("OutOfMemoryError: CUDA out of memory")] * 3

    def break_it(*_):
        if broken:
            raise broken.pop()

    if where == "generate":
        engine.errors = broken
    elif where == "load":
        engine.on_load = break_it
    else:
        flow = InferenceFlow(world.context, engine, world.asked(task := Task()))
        task.on_score = break_it
    world.run(flow)
    await world.rest(4)
    reason = "inference failed: OutOfMemoryError: CUDA out of memory; trying again"
    assert str(world.conditions).replace("EngineError: ", "") == reason
    await world.rest(EPOCH_SECONDS * (0.5 + 1) - 5)
    assert len(broken) == 1, "each pause is longer"
    await world.rest(EPOCH_SECONDS * 3 + 2)
    assert broken == []
    assert [item.slot for item in commits(world)] == [0, 1]
    assert str(world.conditions) == ""
    await world.stop()


async def test_the_task_is_asked_in_the_background(tmp_path):
    world, engine, _ = started(tmp_path)
    task = Task()
    asked = task.watch(world.background)
    world.run(InferenceFlow(world.context, engine, world.asked(task)))
    await world.rest(5)
    assert len(commits(world)) == 2
    prompts, answers = 2, 4  # of a rollout: those of a group have one prompt
    assert asked == [True] * 2 * (prompts + answers)
    await world.stop()


async def test_an_engine_that_broke_is_given_its_policy_again(tmp_path):
    """A restarted engine may have no policy."""
    world, engine, flow = started(tmp_path)
    engine.errors.append(EngineError("gone"))
    world.run(flow)
    await world.rest(EPOCH_SECONDS)
    assert engine.loads == [0, 0]
    assert len(commits(world)) == 2
    await world.stop()


async def test_a_slot_on_which_the_task_always_fails_is_left_out(tmp_path):
    world, engine, flow = started(tmp_path)
    flow = InferenceFlow(world.context, engine, world.asked(task := Task()))
    bad = assign(world.manifest, world.signer.peer_id, 0)[1].problem_seed

    def choke(seed):
        if seed == bad:
            raise IndexError("a bug of the task")

    task.on_score = choke
    world.run(flow)
    await world.rest(20 * EPOCH_SECONDS)
    assert commits(world) == []
    assert "IndexError: a bug of the task" in str(world.conditions)
    assert len(engine.tried) <= TRIES_MAX
    await world.rest(2 * PAUSE_EPOCHS_MAX * EPOCH_SECONDS)
    assert [item.slot for item in commits(world)] == [1, 2]
    assert str(world.conditions) == ""
    await world.stop()


async def test_a_slot_without_a_score_is_left_out(tmp_path):
    """It would fail the same way each time."""
    world, engine, _ = started(tmp_path)
    task = Unsure(world.background)
    items = assign(world.manifest, world.signer.peer_id, 1)
    task.unsure[items[2].problem_seed] = None
    world.run(InferenceFlow(world.context, engine, task))
    await world.rest(5)
    settle(world, world.network.published[0])
    await world.rest(20 * EPOCH_SECONDS)
    assert [item.slot for item in commits(world)] == [0, 2, 3, 4, 5]
    assert len(engine.tried) == 6, "it was generated again"
    assert str(world.conditions) == ""
    await world.stop()


async def test_a_machine_that_scores_nothing_keeps_its_slots(tmp_path):
    """Two slots are left out with each version."""
    world, engine, _ = started(tmp_path)
    task = Unsure(world.background)
    for slot in range(9):
        for item in assign(world.manifest, world.signer.peer_id, slot):
            task.unsure[item.problem_seed] = None
    world.run(InferenceFlow(world.context, engine, task))
    await world.rest(20 * EPOCH_SECONDS)
    assert len(engine.tried) == SKIPS_MAX
    told = "no score for 2 slots in a row, sequence 0: 3.2 s of processor time; waiting for a newer"
    assert told in str(world.conditions)
    world.version(policy=world.hold(1, b"policy 1").digest)
    await world.rest(20 * EPOCH_SECONDS)
    assert commits(world) == []
    task.unsure.clear()
    world.version(policy=world.hold(2, b"policy 2").digest)
    await world.rest(5)
    assert [item.slot for item in commits(world)] == [4, 5]
    assert str(world.conditions) == ""
    await world.stop()


async def test_a_key_on_probation_makes_nothing_that_nobody_would_judge(tmp_path):
    rules = {"rule": "open", "work_bits": 0, "probation_epochs": 1, "settled_epochs": 50}
    world, engine, flow = started(tmp_path, admission=rules)
    world.run(flow)
    await world.rest(15)
    assert commits(world) == [], "others have never heard of it"
    world.live(world.signer, roles=("inference",), admission=work_proof(1, 0))
    await world.rest(30)
    assert commits(world) == []
    assert engine.tokens_sampled == 0, "no rollout is made in vain"
    assert "this key is too new for version 0" in str(world.conditions)
    await world.rest(20)
    world.version(created_at=round(world.now() * 1000))
    world.hold(1, b"policy 1")
    world.changes.notify()
    await world.rest(5)
    assert {item.version for item in commits(world)} == {1}
    assert str(world.conditions) == ""
    await world.stop()
