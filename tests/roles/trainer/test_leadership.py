import asyncio

import pytest

from protocol.core.crypto import digest
from roles.ports.storage import StorageFullError
from tests.roles.trainer.trainer_world import EPOCH_SECONDS, World

pytestmark = pytest.mark.virtual

# Terms


async def test_a_trainer_waits_for_a_final_page_that_lets_it_lead(tmp_path):
    """However long the leader is silent."""
    world = World(tmp_path, "trainer 1")
    world.start()
    await world.rest(300)
    assert world.engine.loaded == []
    head = world.replica.ledger.chain.head
    await world.decide(1, head)
    await world.rest(EPOCH_SECONDS)
    assert world.engine.loaded == ["v0.safetensors"]
    world.batch()
    await world.rest(5)
    (made,) = world.published
    assert (made.version, made.term, made.parent) == (1, 1, head.digest)
    await world.stop()


async def test_a_trainer_waits_for_the_final_version_that_its_term_follows(tmp_path):
    world = World(tmp_path, "trainer 1")
    missing = world.world.checkpoint(world.replica.ledger.chain.head)
    world.start()
    await world.decide(1, missing)
    await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loaded == []
    world.replica.receive(missing.envelope, world.now())
    world.hold(1, b"policy 1")
    await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loaded == ["v1.safetensors"]
    await world.stop()


async def test_what_held_it_up_is_forgotten_when_another_one_leads(tmp_path):
    world = World(tmp_path)
    world.policies.held.clear()
    world.start()
    await world.rest(10)
    assert "waiting for the weights of version 0" in str(world.conditions)
    await world.decide(1, world.replica.ledger.chain.head)
    await world.rest(10)
    assert str(world.conditions) == ""
    await world.stop()


async def test_versions_of_a_term_that_has_ended_are_dropped_and_made_again_in_the_next_own_term(
    tmp_path,
):
    """Other nodes never got version 2: its trainer goes on from the final version, too."""
    world = World(tmp_path, trainers=1)
    world.start()
    world.batch()
    await world.rest(5)
    final = world.replica.ledger.chain.head
    lost_batch = world.batch()
    await world.rest(5)
    assert [(item.version, item.term) for item in world.published] == [(1, 0), (2, 0)]
    await world.decide(1, final)
    await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loaded == ["v0.safetensors", "v1.state"], "not that of version 2"
    made = world.published[2]
    assert (made.version, made.term, made.parent) == (2, 1, final.digest)
    assert set(made.batch) == {signed.digest for signed in lost_batch}, "they were given back"
    assert world.replica.ledger.chain.head.message == made
    await world.stop()


async def test_a_former_leader_follows_the_final_version_and_drops_its_own(tmp_path):
    world = World(tmp_path)
    world.start()
    world.batch()
    await world.rest(5)
    genesis, own = world.replica.ledger.chain.get(0), world.replica.ledger.chain.head
    assert own.message in world.published
    await world.decide(1, genesis)
    assert world.version_now == 0
    new = world.world.checkpoint(genesis, 1, term=1)
    world.take(new)
    await world.rest(2 * EPOCH_SECONDS)
    assert world.replica.ledger.chain.head == new
    assert len(world.published) == 1
    await world.stop()


async def test_a_stored_version_that_was_dropped_meanwhile_is_not_gone_on_from(tmp_path):
    """The trainer stopped; the council gave its term to another one, and then back to it."""
    world = World(tmp_path, trainers=1)
    genesis = world.replica.ledger.chain.head
    stored = world.world.checkpoint(genesis)
    world.replica.restore(stored.envelope)
    world.files.state(1).write_text("state")
    world.hold(1, b"policy 1")
    world.network.synchronised = False
    world.start()
    await world.decide(2, genesis)
    world.network.synchronised = True
    await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loaded == ["v0.safetensors"]
    world.batch()
    await world.rest(5)
    assert [(item.version, item.term) for item in world.published] == [(1, 2)]
    await world.stop()


async def test_a_stored_version_that_final_pages_drop_is_not_used_before_it_is_dropped(tmp_path):
    """A page may be final here a while before the replica follows it."""
    world = World(tmp_path)
    await world.decide(2, world.replica.ledger.chain.head)
    stored = world.world.checkpoint(world.replica.ledger.chain.head)
    world.replica.restore(stored.envelope)
    world.hold(1, b"policy 1")
    world.live(world.signer, policy_version=-1)
    world.run(world.flow)
    await asyncio.sleep(EPOCH_SECONDS / 2)
    assert world.version_now == 1
    assert world.engine.loaded == []
    await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loaded == ["v0.safetensors"]
    await world.stop()


async def test_a_complete_run_is_left_alone(tmp_path):
    world = World(tmp_path, grpo={"steps": 1})
    world.start()
    world.version()
    await world.rest(20)
    assert world.engine.loaded == []
    await world.stop()


# Resume point


def own_head(world, version=1):
    """Make the head an own version, whose state is on this disk."""
    world.version()
    world.files.state(version).write_text("state")
    world.hold(version, b"policy 1")


async def test_it_goes_on_from_its_own_state_and_says_again_what_it_said_last(tmp_path):
    world = World(tmp_path)
    own_head(world)
    world.start()
    await world.rest(5)
    assert world.engine.loaded == ["v1.state"]
    assert world.network.announced == [world.replica.ledger.chain.head.envelope]
    world.batch()
    await world.rest(5)
    assert [(item.version, item.term) for item in world.published] == [(2, 0)]
    await world.stop()


@pytest.mark.parametrize("published", ["good", "damaged", "of other weights", "gone"])
async def test_a_damaged_state_is_replaced(tmp_path, published):
    world = World(tmp_path)
    world.version(state=digest(b"state"), state_bytes=5)
    world.files.state(1).write_text("half")
    world.engine.damaged["v1.state"] = None
    world.hold(1, b"policy 1")
    policy = world.replica.ledger.chain.head.message.policy
    world.engine.states["published.state"] = policy
    if published != "gone":
        world.policies.state = tmp_path / "published.state"
    if published == "of other weights":
        world.engine.states["published.state"] = digest(b"other weights")
    if published == "damaged":
        world.engine.damaged["published.state"] = None
    world.start()
    await world.rest(5)
    expected = "published.state" if published == "good" else "v1.safetensors"
    assert world.engine.loaded == [expected]
    world.batch()
    await world.rest(5)
    assert [(item.version, item.term) for item in world.published] == [(2, 0)]
    await world.stop()


async def test_its_own_state_of_a_version_that_it_made_twice_is_not_used(tmp_path):
    """The trainer made version 1 twice, and was killed before publication."""
    world = World(tmp_path)
    own_head(world)
    world.engine.states["v1.state"] = digest(b"made again")
    world.start()
    await world.rest(5)
    assert world.engine.loaded == ["v1.safetensors"]
    await world.stop()


@pytest.mark.parametrize("state_bytes", [100, 101, 2**53])
async def test_a_state_is_fetched_only_if_it_can_be_one(tmp_path, state_bytes):
    world = World(tmp_path)
    world.policies.state = tmp_path / "published.state"
    published = world.version(trainer=1, term=1, state=digest(b"state"), state_bytes=state_bytes)
    world.hold(1, b"policy 1")
    await world.decide(2, published)
    world.start()
    await world.rest(5)
    usable = state_bytes <= await world.engine.state_bytes_max()
    assert world.engine.loaded == ["published.state" if usable else "v1.safetensors"]
    await world.stop()


@pytest.mark.parametrize("held", [True, False])
async def test_a_state_of_an_earlier_version_goes_with_the_weights_of_the_newest(tmp_path, held):
    world = World(tmp_path, shardcast={"state_every": 3})
    world.version(trainer=1, term=1, state=digest(b"state"), state_bytes=5)
    await world.decide(2, world.version(trainer=1, term=1))
    world.policies.state = tmp_path / "published.state"
    world.engine.states["published.state"] = world.replica.ledger.chain.get(1).message.policy
    if held:
        world.hold(2, b"policy 2")
    else:
        world.policies.held.pop(2, None)
    world.start()
    await world.rest(5)
    assert world.engine.loaded == (["published.state", "v2.safetensors"] if held else [])
    await world.stop()


@pytest.mark.parametrize("files", [("v1.state", "v3.state"), ("v3.state",), ("v2.state",), ()])
async def test_it_goes_on_from_its_newest_state_with_the_newest_weights(tmp_path, files):
    world = World(tmp_path, shardcast={"state_every": 3})
    for version in range(1, 6):
        own_head(world) if version == 1 else world.version()
    world.files.state(1).unlink(missing_ok=True)
    for name in files:
        (world.files.state(1).parent / name).write_text("state")
        made = world.replica.ledger.chain.get(int(name[1]))
        world.engine.states[name] = made.message.policy
    world.hold(5, b"policy 5")
    world.start()
    await world.rest(5)
    expected = ["v3.state", "v5.safetensors"] if "v3.state" in files else ["v5.safetensors"]
    assert world.engine.loaded == expected
    await world.stop()


async def test_weights_that_are_refused_are_handed_back(tmp_path):
    world = World(tmp_path)
    policy = world.policies.held[0]
    world.engine.damaged[policy.path.name] = None
    world.start()
    await world.rest(15)
    assert world.policies.discarded == [0]
    assert "waiting for the weights" in str(world.conditions)
    world.engine.damaged.clear()
    world.policies.held[0] = policy
    world.engine.on_read = lambda: in_use.append(list(world.policies.in_use))
    in_use = []
    await world.rest(15)
    assert world.engine.loaded == ["v0.safetensors"]
    assert (in_use, world.policies.in_use) == ([[0]], [])
    await world.stop()


async def test_no_room_for_a_state_is_told_and_waited_for(tmp_path):
    world = World(tmp_path)
    world.version(state=digest(b"state"), state_bytes=5)
    world.policies.errors.append(StorageFullError("no room"))
    world.policies.state = tmp_path / "published.state"
    world.start()
    await world.rest(5)
    assert "disk full" in str(world.conditions)
    await world.rest(15)
    assert world.engine.loaded == ["published.state"]
    assert str(world.conditions) == ""
    await world.stop()


@pytest.mark.parametrize(
    "lie",
    [
        {"trainer": 2, "term": 2**53},  # the largest in a message
        {"term": 2**53 - 1},
        {"reward_mean": -(2**53)},
        {"total_bytes": 2**53, "index_bytes": 2**53},
        {"created_at": 2**53},
    ],
    ids=str,
)
async def test_nothing_that_another_trainer_signs_ends_an_honest_one(tmp_path, lie):
    world = World(tmp_path, trainers=3)
    world.start()
    claim = {"trainer": 1, "term": 1} | lie
    head = world.replica.ledger.chain.head
    signed = world.world.checkpoint(head, claim.pop("trainer"), batch=(), **claim)
    world.replica.receive(signed.envelope, world.now())
    world.hold(1, b"policy 1")
    world.changes.notify()
    await world.rest(5)
    world.batch()
    await world.rest(5)
    assert world.published, str(world.conditions)
    await world.stop()
