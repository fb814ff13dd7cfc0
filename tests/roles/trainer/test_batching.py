import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.storage.row_files import RowDirectory
from protocol.core.crypto import digest
from protocol.rollout.assignment import assign
from protocol.rollout.body import RolloutSequence, encode_body
from roles.engines.files.stored_numbers import floats, integers
from roles.ports.storage import BatchRows, StorageFullError
from roles.trainer.batching import Batching
from roles.trainer.flow import TrainerFlow
from tests.roles.trainer.trainer_world import World
from tests.worlds.flow_world import ANSWER, END, Task, Unsure

pytestmark = pytest.mark.virtual


async def test_a_few_lost_bodies_hold_nothing_up(tmp_path):
    world = World(tmp_path, grpo={"rollouts_per_step": 2, "rollouts_ahead": 9})
    world.start()
    lost = [world.rollout(worker=n % 2, held=False) for n in range(6)]
    assert len(lost) == 6
    await world.rest(10)
    assert world.published == []
    good = [world.rollout(worker=2) for _ in range(2)]
    await world.rest(20)
    assert [set(item.batch) for item in world.published] == [{item.digest for item in good}]
    await world.stop()


async def test_a_body_is_asked_of_its_worker_and_of_who_certified_it(tmp_path):
    world = World(tmp_path)
    world.start()
    first, _ = world.batch()
    await world.rest(3)
    sources = dict(world.network.asked)[first.message.body]
    entry = world.replica.ledger.commits.entries[first.digest]
    assert sources[0] == first.signer
    assert entry.certificate.signer in sources
    await world.stop()


@pytest.mark.parametrize(
    "body", [b"nonsense", encode_body([RolloutSequence((99, END), (-0.5, -0.5), 0, ())] * 4)]
)
async def test_a_certified_body_that_cannot_be_is_not_learned_from(tmp_path, body):
    """A committee may be dishonest; the model must survive such a body."""
    world = World(tmp_path)
    world.start()
    wrong = world.rollout(body)
    good = [world.rollout(worker=worker) for worker in (1, 2)]
    await world.rest(20)
    assert [set(item.batch) for item in world.published] == [{item.digest for item in good}]
    assert wrong.digest not in world.published[0].batch
    await world.stop()


async def test_nothing_is_learned_from_without_a_certificate(tmp_path):
    world = World(tmp_path)
    world.start()
    world.rollout(worker=0)
    world.rollout(worker=1, certified=False)
    await world.rest(30)
    assert world.engine.batches == []
    await world.stop()


async def test_what_is_too_old_for_the_version_under_way_is_left_out(tmp_path):
    """The ledger counts from the last published version; the one in progress is newer."""
    world = World(tmp_path, grpo={"async_level": 0})
    release, published = world.policies.release, asyncio.Event()

    async def slow(policy):
        await published.wait()
        return await release(policy)

    world.policies.release = slow
    world.start()
    world.batch()
    await world.rest(3)
    world.batch()
    await world.rest(20)
    assert len(world.replica.ledger.backpressure.usable()) == 4
    assert len(world.engine.batches) == 1
    published.set()
    await world.rest(3)
    world.batch()
    await world.rest(3)
    assert [item.version for item in world.published] == [1, 2]
    await world.stop()


async def test_a_body_of_a_version_that_is_superseded_meanwhile_is_not_used(tmp_path):
    """The body answers prompts of a superseded version."""
    world = World(tmp_path)
    genesis = world.replica.ledger.chain.head
    world.version()
    world.batch()
    batching = Batching(world.context, world.engine, world.asked(Task()))
    found = asyncio.create_task(batching.next(1, b"policy"))
    await asyncio.sleep(0.01)
    world.adopt(world.world.checkpoint(genesis, 1, term=1, policy=digest(b"another")))
    assert await found is None


# Log-probabilities

ROUNDING = {"dtype": "bf16"}


async def test_log_probabilities_are_our_own_under_the_version_that_generated(tmp_path):
    """Workers' claims, ``-0.5`` here, are ignored; the engine's values identify their version."""
    grpo = {"rollouts_per_step": 6, "rollouts_ahead": 9}
    world = World(tmp_path, grpo=grpo, model=ROUNDING)
    world.version()
    world.hold(1, b"policy 1")
    made = {world.rollout(worker=n % 3, version=n % 2).digest: n % 2 for n in range(6)}
    batch = await Batching(world.context, world.engine, world.asked(Task())).next(1, b"policy")
    assert world.engine.recomputed == [0, 1], "weights are read once a batch"
    rollouts = [batch.sequences[start : start + 4] for start in range(0, 24, 4)]
    for commit, rollout in zip(batch.draw.commits, rollouts, strict=True):
        assert {one.logprobs for one in rollout} == {(-1.0 - made[commit],) * 2}
    assert [one.group for one in batch.sequences] == sorted(one.group for one in batch.sequences)


async def test_rollouts_of_a_version_whose_weights_are_not_here_wait_for_them(tmp_path):
    grpo = {"rollouts_per_step": 2, "rollouts_ahead": 9}
    world = World(tmp_path, grpo=grpo, model=ROUNDING)
    world.version()
    world.hold(1, b"policy 1")
    old = [world.rollout(worker=n % 3, version=0).digest for n in range(6)]
    held = world.policies.held.pop(0)
    batching = Batching(world.context, world.engine, world.asked(Task()))
    assert await batching.next(1, b"policy") is None
    new = [world.rollout(worker=n, version=1).digest for n in range(2)]
    batch = await batching.next(1, b"policy")
    assert set(batch.draw.commits) == set(new)
    batching.use(batch.draw)
    world.policies.held[0] = held
    assert set((await batching.next(1, b"policy")).draw.commits) < set(old)


async def test_where_nothing_rounds_claims_are_taken_as_the_audit_left_them(tmp_path):
    world = World(tmp_path)
    world.batch()
    del world.policies.held[0]
    batch = await Batching(world.context, world.engine, world.asked(Task())).next(0, b"policy")
    assert {one.logprobs for one in batch.sequences} == {(-0.5, -0.5)}


async def test_weights_are_held_while_the_engine_reads_them(tmp_path):
    world, in_use = World(tmp_path, model=ROUNDING), []
    world.batch()
    world.engine.on_read = lambda: in_use.append(list(world.policies.in_use))
    batching = Batching(world.context, world.engine, world.asked(Task()))
    assert await batching.next(0, b"policy") is not None
    assert (in_use, world.policies.in_use) == ([[0]], [])


async def test_weights_that_the_engine_refuses_are_fetched_again(tmp_path):
    world = World(tmp_path, model=ROUNDING)
    world.batch()
    held = world.policies.held[0]
    world.engine.damaged[held.path.name] = None
    batching = Batching(world.context, world.engine, world.asked(Task()))
    assert await batching.next(0, b"policy") is None
    assert world.policies.discarded == [0]
    world.engine.damaged.clear()
    world.policies.held[0] = held
    assert await batching.next(0, b"policy") is not None


# Random selection


async def test_the_batch_is_drawn_by_lot_and_not_by_age(tmp_path):
    world = World(tmp_path, grpo={"rollouts_per_step": 2, "rollouts_ahead": 9})
    held = [world.rollout(worker=n % 3).digest for n in range(6)]
    drawn = Counter()
    for number in range(80):
        policy = digest(b"%d" % number)
        batch = await Batching(world.context, world.engine, world.asked(Task())).next(0, policy)
        assert list(batch.draw.commits) == sorted(held, key=lambda key: digest(policy + key))[:2]
        again = await Batching(world.context, world.engine, world.asked(Task())).next(0, policy)
        assert again.draw.commits == batch.draw.commits
        drawn.update(batch.draw.commits)
    assert sorted(drawn) == sorted(held)
    assert max(drawn.values()) < 3 * min(drawn.values()), "27 each are to be expected"


async def test_the_lot_of_a_step_is_that_of_the_policy_before_it(tmp_path):
    world = World(tmp_path, grpo={"rollouts_per_step": 2, "rollouts_ahead": 9})
    held = [world.rollout(worker=n % 3).digest for n in range(6)]
    world.start()
    await world.rest(3)
    policies = [world.manifest.genesis_policy, *(item.policy for item in world.published)]
    assert len(world.published) == 3
    for policy, item in zip(policies, world.published, strict=False):
        assert list(item.batch) == sorted(held, key=lambda key: digest(policy + key))[:2]
        held = [key for key in held if key not in item.batch]
    await world.stop()


# Uninformative groups

GROUPS = {  # two groups of two
    "dull": (ANSWER, ANSWER, 7, 7),
    "half": (ANSWER, ANSWER, ANSWER, 7),
    "teaching": (7, ANSWER, ANSWER, 7),
}
REFILLING = {"rollouts_per_step": 2, "refill_max": 3, "rollouts_ahead": 4}


def rollout(world, kind, number):
    """Accept a rollout of a kind; its worker is another one each time."""
    body = [RolloutSequence((token, END), (-0.5, -0.5), 0, (b"%d" % number,)) for token in kind]
    return world.rollout(encode_body(body), worker=number % 3).digest


@pytest.mark.parametrize(
    ("kinds", "taken"),
    [
        (["teaching"] * 2, 2),
        (["dull", "teaching"], None),
        (["half", "half"], None),
        (["half", "half", "teaching"], 3),
        (["half"] * 3 + ["dull"], None),
        (["half"] * 4, 4),
        (["dull"] * 4, None),
        (["dull"] * 5, 5),
        (["dull"] * 4 + ["teaching"], 5),
    ],
)
async def test_more_is_drawn_in_place_of_groups_that_teach_nothing(tmp_path, kinds, taken):
    """All of it is used up, and a run without informative groups moves on."""
    world = World(tmp_path, grpo=REFILLING)
    batching = Batching(world.context, world.engine, world.asked(Task()))
    batches, commits = [], []
    for number, kind in enumerate(kinds):
        assert world.replica.ledger.backpressure.wanted(world.replica.ledger.epoch), (
            "workers do not pause while it waits"
        )
        commits.append(rollout(world, GROUPS[kind], number))
        batches.append(await batching.next(0, b"policy"))
    *early, last = batches
    assert early == [None] * len(early)
    if taken is None:
        assert last is None
    else:
        assert sorted(last.draw.commits) == sorted(commits)
        assert len(last.sequences) == 4 * taken == 4 * len(commits)
        assert len({item.group for item in last.sequences}) == 2 * taken
    asked = [body for body, _ in world.network.asked]
    assert len(asked) == len(set(asked)), "what was read is not fetched again"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(sorted(GROUPS)), max_size=8), st.binary(max_size=4))
async def test_no_more_is_drawn_than_is_needed(tmp_path_factory, kinds, policy):
    world = World(tmp_path_factory.mktemp("world"), grpo=REFILLING)
    made = {rollout(world, GROUPS[kind], n): kind for n, kind in enumerate(kinds)}
    batch = await Batching(world.context, world.engine, world.asked(Task())).next(0, policy)
    teaching, expected = 0, []
    for key in sorted(made, key=lambda key: digest(policy + key)):
        if (teaching >= 4 and len(expected) >= 2) or len(expected) == 5:
            break
        expected.append(key)
        teaching += {"dull": 0, "half": 1, "teaching": 2}[made[key]]
    enough = (teaching >= 4 and len(expected) >= 2) or len(expected) == 5
    assert (batch is not None) is enough
    assert batch is None or list(batch.draw.commits) == expected


async def test_without_refilling_a_step_takes_what_it_draws(tmp_path):
    world = World(tmp_path)
    commits = [rollout(world, GROUPS["dull"], number) for number in range(2)]
    batch = await Batching(world.context, world.engine, world.asked(Task())).next(0, b"policy")
    assert sorted(batch.draw.commits) == sorted(commits)


async def test_a_trainer_that_refills_goes_on_step_after_step(tmp_path):
    """Workers produce at the backpressure limit; nine of ten of their groups are uninformative."""
    world = World(tmp_path, grpo=REFILLING | {"rollouts_ahead": 3, "steps": 9})
    world.start()
    for number in range(200):
        if world.replica.ledger.backpressure.wanted(world.replica.ledger.epoch):
            rollout(world, GROUPS["dull" if number % 5 else "half"], number)
        await world.rest(1)
    assert [item.version for item in world.published] == list(range(1, 10))
    assert {len(item.batch) for item in world.published} <= {4, 5}
    await world.stop()


async def test_a_rollout_without_a_score_is_left_out_and_asked_about_once(tmp_path):
    grpo = {"rollouts_per_step": 2, "rollouts_ahead": 9}
    world = World(tmp_path, grpo=grpo)
    commits = [world.rollout(worker=n) for n in range(2)]
    task = Unsure(world.background)
    batching = Batching(world.context, world.engine, task)
    seed = assign(world.manifest, commits[0].signer, 0)[0].problem_seed
    task.unsure[seed] = None
    assert await batching.next(0, b"policy") is None
    assert await batching.next(0, b"policy") is None
    assert task.asked.count(seed) == 2, "two sequences of one prompt, once"
    third = world.rollout(worker=2)
    batch = await batching.next(0, b"policy")
    assert set(batch.draw.commits) == {commits[1].digest, third.digest}


# Final rollouts


def lot(world, commits):
    """Return commits in the order of the lot at the newest final page."""
    beacon = world.replica.pages.root.beacon
    return sorted((one.digest for one in commits), key=lambda one: digest(beacon + one))


async def test_final_rollouts_come_first_in_the_order_of_the_lot(tmp_path):
    world = World(tmp_path, grpo={"rollouts_per_step": 4, "rollouts_ahead": 9})
    final = [world.rollout(worker=n % 3) for n in range(6)]
    await world.accept(*final)
    others = [world.rollout(worker=n % 3).digest for n in range(6)]
    batching = Batching(world.context, world.engine, world.asked(Task()))
    first = await batching.next(0, b"policy")
    assert list(first.draw.commits) == lot(world, final)[:4]
    assert (first.draw.page, first.draw.omitted) == (world.replica.pages.root.digest, ())
    batching.use(first.draw)
    second = await batching.next(1, b"policy")
    expected = sorted(others, key=lambda one: digest(b"policy" + one))[:2]
    assert list(second.draw.commits) == [*lot(world, final)[4:], *expected]


async def test_final_rollouts_that_cannot_be_used_are_named(tmp_path):
    world = World(tmp_path, grpo={"rollouts_per_step": 4, "rollouts_ahead": 9})
    lost = [world.rollout(worker=n, held=False) for n in range(2)]
    held = [world.rollout(worker=n % 3) for n in range(6)]
    await world.accept(*lost, *held)
    order = lot(world, lost + held)
    batching = Batching(world.context, world.engine, world.asked(Task()))
    for _ in range(2):
        batch = await batching.next(0, b"policy")
        assert list(batch.draw.commits) == lot(world, held)[:4]
        last = order.index(batch.draw.commits[-1])
        missing = {one.digest for one in lost}
        assert list(batch.draw.omitted) == [one for one in order[:last] if one in missing]
    asked = [body for body, _ in world.network.asked]
    assert len(asked) == len(set(asked)), "a body that is not needed is not tried again"


async def test_a_batch_that_leaves_out_too_many_waits_for_them(tmp_path):
    world = World(tmp_path, grpo={"rollouts_per_step": 4, "rollouts_ahead": 9})
    lost = [world.rollout(worker=n, held=False) for n in range(3)]
    held = [world.rollout(worker=n % 3) for n in range(3)]
    await world.accept(*lost, *held)
    spare = [world.rollout(worker=n) for n in range(3)]
    batching = Batching(world.context, world.engine, world.asked(Task()))
    assert await batching.next(0, b"policy") is None
    reason = world.context.conditions["trainer"]
    assert reason.startswith("waiting for another batch: it leaves out 3 final rollouts (1 of …")
    body = lost[1].message.body
    world.network.bodies[body] = encode_body(
        [RolloutSequence((ANSWER, END), (-0.5, -0.5), 1_000_000, (b"proof",))] * 3
        + [RolloutSequence((ANSWER, END), (-0.5, -0.5), 0, (world.world.workers[1].public_key,))]
    )
    batch = await batching.next(0, b"policy")
    assert set(batch.draw.commits) == {one.digest for one in (*held, lost[1])}
    assert set(batch.draw.omitted) <= {lost[0].digest, lost[2].digest}
    assert world.context.conditions["trainer"] == ""
    assert spare


async def test_a_body_that_fails_is_tried_once_a_time(tmp_path):
    """Also when those that failed before are tried again."""
    world = World(tmp_path, grpo={"rollouts_per_step": 4, "rollouts_ahead": 9})
    lost = [world.rollout(worker=n, held=False) for n in range(3)]
    held = world.rollout(worker=0)
    batching = Batching(world.context, world.engine, world.asked(Task()))
    assert await batching.next(0, b"policy") is None
    later = world.rollout(worker=1, held=False)
    assert await batching.next(0, b"policy") is None
    asked = Counter(body for body, _ in world.network.asked)
    assert [asked[one.message.body] for one in (*lost, held, later)] == [2, 2, 2, 1, 1]


@settings(max_examples=40, deadline=None)
@given(st.data())
async def test_the_batch_of_any_ledger_conforms(tmp_path_factory, data):
    """Whatever is final, held, scored or recomputable; by the definition of the lot."""
    rounds = data.draw(st.booleans())
    step = data.draw(st.integers(2, 5))
    options = {"model": ROUNDING} if rounds else {}
    grpo = {"rollouts_per_step": step, "rollouts_ahead": 9}
    world = World(tmp_path_factory.mktemp("world"), grpo=grpo, **options)
    world.version()
    has_new_policy = data.draw(st.booleans())
    if has_new_policy:
        world.hold(1, b"policy 1")
    kinds = st.tuples(st.integers(0, 2), st.integers(0, 1), st.booleans(), st.booleans())
    made = {}
    for worker, version, is_final, held in data.draw(st.lists(kinds, max_size=14)):
        token = RolloutSequence((7, END), (-0.5, -0.5), 0, (b"%d" % len(made),))
        commit = world.rollout(encode_body([token] * 4), worker=worker, version=version, held=held)
        is_usable = held and (has_new_policy or not rounds or version == 0)
        made[commit.digest] = is_final, is_usable, commit
    final = [commit for is_final, _, commit in made.values() if is_final]
    if final:
        await world.accept(*final)
    world.pages.stop()
    batching = Batching(world.context, world.engine, world.asked(Task()))
    batch = None
    for _ in range(8):  # one try reads at most twice a batch, and the next one leaves out failures
        batch = batch or await batching.next(1, b"policy")

    order = lot(world, final)
    usable = [one for one in order if made[one][1]]
    fresh = [one for one, (is_final, is_usable, _) in made.items() if is_usable and not is_final]
    fresh.sort(key=lambda one: digest(b"policy" + one))
    drawn = [*usable, *fresh][:step]
    last = len(order) if len(usable) < step else order.index(drawn[-1]) if drawn else 0
    omitted = [one for one in order[:last] if not made[one][1]]
    if len(drawn) < step or len(omitted) > 2:
        assert batch is None
        return
    assert (list(batch.draw.commits), list(batch.draw.omitted)) == (drawn, omitted)
    world.version(
        *(made[one][2] for one in drawn), page=batch.draw.page, omitted=batch.draw.omitted
    )
    assert world.replica.batches.judged(2) is True


async def test_the_versions_of_a_run_conform(tmp_path):
    """Of a trainer that restarts, publishes slowly, and lacks some bodies for a while."""
    world = World(tmp_path, grpo={"rollouts_per_step": 4, "rollouts_ahead": 9, "steps": 40})
    world.start()
    rest = []
    for number in range(60):
        commit = world.rollout(worker=number % 3, held=number % 7 > 0)
        rest.append(commit)
        if number % 9 == 8:
            world.pages.accepted = [one.digest for one in rest[-12:-2]]
            await world.rest(25)
        if number in (20, 40):
            await world.stop()
            world.flow = TrainerFlow(world.context, world.engine, world.asked(Task()))
            world.engine.write_seconds = number / 4
            world.run(world.flow)
    await world.rest(100)
    chain = world.replica.ledger.chain
    assert chain.version > 5
    assert world.replica.batches.conforming(0) == chain.version
    assert any(entry.manifest.message.omitted for entry in chain.checkpoints)
    pages = {entry.manifest.message.page for entry in chain.checkpoints}
    assert len(pages) > 4
    await world.stop()


# Reference policy

REFERRING = {"kind": "grpo", "epsilon": 0.2, "delta": 4.0, "kl_coefficient": 0.1}


@pytest.mark.parametrize("model", [{}, ROUNDING])
async def test_the_reference_is_the_genesis_policy(tmp_path, model):
    grpo = {"rollouts_per_step": 2, "rollouts_ahead": 9, "loss": REFERRING}
    world = World(tmp_path, grpo=grpo, model=model)
    world.version()
    world.hold(1, b"policy 1")
    for number in range(2):
        world.rollout(worker=number, version=1)
    batch = await Batching(world.context, world.engine, world.asked(Task())).next(1, b"policy")
    assert world.engine.recomputed == ([1, 0] if model else [0])
    assert {one.reference_logprobs for one in batch.sequences} == {(-1.0, -1.0)}
    assert {one.logprobs for one in batch.sequences} == {(-2.0,) * 2 if model else (-0.5,) * 2}


async def test_a_trainer_without_the_genesis_policy_waits_for_it(tmp_path):
    grpo = {"rollouts_per_step": 2, "rollouts_ahead": 9, "loss": REFERRING}
    world = World(tmp_path, grpo=grpo)
    world.version()
    for number in range(2):
        world.rollout(worker=number, version=1)
    world.files.genesis.unlink(missing_ok=True)
    held = world.policies.held.pop(0)
    batching = Batching(world.context, world.engine, world.asked(Task()))
    assert await batching.next(1, b"policy") is None
    assert "genesis policy" in world.context.conditions["trainer"]
    world.policies.held[0] = held
    assert await batching.next(1, b"policy") is not None
    assert world.context.conditions["trainer"] == ""


# Numbers of a batch


def storing(world, directory):
    """Let a world keep the numbers of its batches in files."""
    world.context = replace(world.context, rows=RowDirectory(directory))
    return world


def files_in(directory):
    return sorted(path.name for path in directory.glob("*"))


async def test_the_daemon_keeps_places_and_the_files_of_the_batch_in_progress(tmp_path):
    rows = tmp_path / "rows"
    grpo = {"rollouts_per_step": 2, "rollouts_ahead": 9}
    world = storing(World(tmp_path, grpo=grpo), rows)
    batching = Batching(world.context, world.engine, world.asked(Task()))
    first = world.rollout()
    assert await batching.next(0, b"policy") is None
    assert files_in(rows) == [], "one rollout is not enough to read any"
    second = world.rollout(worker=1)
    batch = await batching.next(0, b"policy")
    names = sorted(f"{one.digest.hex()}.rows" for one in (first, second))
    assert files_in(rows) == names
    for one in batch.sequences:
        assert integers(one.tokens).tolist() == [ANSWER, END]
        assert floats(one.logprobs).tolist() == [-0.5, -0.5]
    assert await batching.next(0, b"policy") is not None
    assert files_in(rows) == names, "they are read once"
    assert len(world.network.asked) == 2
    batching.use(batch.draw)
    third = world.rollout(worker=2)
    fourth = world.rollout(worker=0)
    later = await batching.next(1, b"policy")
    assert set(later.draw.commits) == {third.digest, fourth.digest}
    assert files_in(rows) == sorted(f"{one.digest.hex()}.rows" for one in (third, fourth))


async def test_a_trainer_waits_for_room_on_its_disk(tmp_path):
    world = World(tmp_path)
    world.batch()
    full = [StorageFullError("no room")]

    class FullOnce(BatchRows):
        async def store(self, commit, sequences):
            if full:
                raise full.pop()
            return await super().store(commit, sequences)

    world.context = replace(world.context, rows=FullOnce())
    batching = Batching(world.context, world.engine, world.asked(Task()))
    assert await batching.next(0, b"policy") is None
    assert world.context.conditions["trainer"] == "disk full: no room; waiting for room"
    assert await batching.next(0, b"policy") is not None
    assert world.context.conditions["trainer"] == ""


async def test_what_a_shadow_has_read_is_not_fetched_again(tmp_path):
    rows = tmp_path / "rows"
    world = storing(World(tmp_path, begun=True), rows)
    held, lost = world.rollout(), world.rollout(worker=1, held=False)
    version = world.version(held, lost)
    batching = Batching(world.context, world.engine, world.asked(Task()))
    for _ in range(2):
        assert await batching.fetch(version.message.batch) is None
        assert files_in(rows) == [f"{held.digest.hex()}.rows"]
    asked = Counter(body for body, _ in world.network.asked)
    assert (asked[held.message.body], asked[lost.message.body]) == (1, 2)
    batching.use(None)
    assert await batching.next(1, b"policy") is None
