"""Training report, from a real ledger and this node's own steps."""

from types import SimpleNamespace

from node.api.v1.routes import encoded
from node.api.v1.training import POINTS_MAX, training_page
from roles.runtime.training_steps import TrainingStep, TrainingSteps
from tests.node.api.test_observer import NOW, WORLD, reader
from tests.worlds.disks import MemoryStore

ME = "me"


def published(versions, signer=ME):
    """Return a context with ``versions`` published after version 0."""
    checkpoints = [
        SimpleNamespace(
            manifest=SimpleNamespace(
                signer=signer,
                message=SimpleNamespace(
                    version=version, created_at=1000 * version, reward_mean=500_000
                ),
            )
        )
        for version in range(versions + 1)
    ]
    return SimpleNamespace(
        training=TrainingSteps(),
        replica=SimpleNamespace(
            ledger=SimpleNamespace(chain=SimpleNamespace(checkpoints=checkpoints))
        ),
        signer=SimpleNamespace(peer_id=ME),
    )


async def test_own_steps_have_their_statistics_and_others_their_reward():
    context = published(3)
    step = TrainingStep(2, 5.0, 0.25, sequences_offered=8, sequences_used=0, updates=0)
    await context.training.record(step, MemoryStore())
    page = training_page(context)
    assert page.versions == (1, 2, 3)
    assert page.columns == {
        "reward_mean": (0.5, 0.25, 0.5),
        "sequences_offered": (None, 8, None),
        "sequences_used": (None, 0, None),
        "updates": (None, 0, None),
    }
    assert page.newest == step
    assert page.warning == step.warning


def test_very_many_versions_share_points():
    page = training_page(published(10 * POINTS_MAX + 1))
    assert len(page.versions) <= POINTS_MAX
    assert page.versions[-1] == 10 * POINTS_MAX + 1
    assert set(page.columns["reward_mean"]) == {0.5}
    assert len(encoded(page)) < 100_000


def test_a_node_of_a_real_swarm_knows_the_announced_reward():
    context = reader().observer.context
    for signed in (WORLD.genesis(), WORLD.checkpoint(WORLD.genesis(), reward_mean=250_000)):
        context.replica.receive(signed.envelope, NOW)
    page = training_page(context)
    assert (page.versions, page.columns, page.newest) == ((1,), {"reward_mean": (0.25,)}, None)
