"""Newer policies are staged during generation, each as a patch of the one before."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.core.crypto import digest
from protocol.core.types import Version
from roles.inference.policy_staging import Staging
from roles.ports.engines import EngineError, FirstToken, Patch, Policy
from tests.roles.inference.test_many_at_once import PLENTY, Busy, started


def policy(version: int, patch_of: bytes | None = None) -> Policy:
    made = Policy(Version(version), digest(b"%d" % version), Path(f"v{version}"))
    if patch_of is None:
        return made
    return replace(made, patch=Patch(digest(patch_of), Path(f"p{version}"), digest(b"patch")))


class Held(dict):
    """Policies by version."""

    def get(self, version):
        return super().get(version)

    def hold(self, policy):
        return nullcontext()


class Engine:
    def __init__(self):
        self.staged = []
        self.error = None
        self.unfit = None
        """The version whose patch is unusable."""

    async def stage(self, policy):
        await asyncio.sleep(0.1)
        if self.error is not None:
            raise self.error
        if policy.version == self.unfit:
            return False
        self.staged.append(policy.version)
        return True


@pytest.fixture
def engine():
    return Engine()


def staging_of(engine, *policies):
    made = Staging(Held({one.version: one for one in policies}), engine)
    made.loaded(policies[0])
    return made


async def done(staging):
    await asyncio.wait([staging._work])


CHAIN = [policy(0), policy(1, b"0"), policy(2, b"1"), policy(3, b"2")]


async def test_patches_are_staged_in_their_order_and_once(engine):
    staging = staging_of(engine, *CHAIN)
    staging.begin(CHAIN[2])
    staging.begin(CHAIN[3])  # during the first staging
    await done(staging)
    assert engine.staged == [1, 2]
    staging.begin(CHAIN[3])
    await done(staging)
    staging.begin(CHAIN[3])
    await staging.finish(CHAIN[3])
    assert engine.staged == [1, 2, 3]


async def test_what_is_left_is_staged_before_a_load(engine):
    staging = staging_of(engine, *CHAIN)
    staging.begin(CHAIN[1])
    await staging.finish(CHAIN[3])
    assert engine.staged == [1, 2, 3]


@pytest.mark.parametrize(
    "chain",
    [
        [policy(0), policy(1), policy(2, b"1")],
        [policy(0), policy(1, b"0"), policy(2, b"another 1")],
        [policy(0), policy(2, b"1")],
        [policy(0), policy(1, b"another 0"), policy(2, b"1")],
    ],
    ids=["a file alone", "of another one", "one is not here", "of another base"],
)
async def test_where_no_patches_lead_nothing_is_staged(engine, chain):
    staging = staging_of(engine, *chain)
    staging.begin(chain[-1])
    await staging.finish(chain[-1])
    assert engine.staged == []


async def test_an_engine_that_has_forgotten_stages_nothing(engine):
    staging = staging_of(engine, *CHAIN)
    staging.forget()
    await staging.finish(CHAIN[3])
    assert engine.staged == []


async def test_what_breaks_is_no_failure_and_not_tried_again(engine):
    staging = staging_of(engine, *CHAIN)
    engine.error = EngineError("no memory")
    staging.begin(CHAIN[2])
    await staging.finish(CHAIN[2])
    engine.error = None
    await staging.finish(CHAIN[3])
    assert engine.staged == []
    staging.loaded(CHAIN[2])
    await staging.finish(CHAIN[3])
    assert engine.staged == [3]


async def test_behind_a_patch_that_cannot_be_used_nothing_is_staged(engine):
    staging = staging_of(engine, *CHAIN)
    engine.unfit = 2
    await staging.finish(CHAIN[3])
    await staging.finish(CHAIN[3])
    assert engine.staged == [1]


async def test_a_defect_is_raised(engine):
    staging = staging_of(engine, *CHAIN)
    engine.error = KeyError("a defect")
    staging.begin(CHAIN[1])
    await done(staging)
    with pytest.raises(KeyError, match="a defect"):
        staging.begin(CHAIN[1])


@pytest.mark.virtual
async def test_a_worker_stages_what_comes_while_it_generates_and_swaps_once(tmp_path):
    engine = Busy(30.0)
    world, flow = started(tmp_path, engine, at_once=1, grpo={**PLENTY, "async_level": 2})
    world.run(flow)
    await world.rest(5.0)
    before = world.policies.held[0]
    for version in (1, 2):
        content = b"policy %d" % version
        world.version(policy=digest(content))
        made = world.hold(version, content)
        patch = Patch(before.digest, Path("patch"), digest(b"patch"))
        before = world.policies.held[version] = replace(made, patch=patch)
        world.changes.notify()
    await world.rest(5.0)
    assert engine.running
    assert (engine.staged, engine.loads) == ([1, 2], [0])
    await world.rest(60.0)
    assert (engine.staged, engine.loads) == ([1, 2], [0, 2])
    await world.stop()


@pytest.mark.virtual
async def test_a_worker_measures_how_soon_a_version_is_in_use(tmp_path):
    engine = Busy(30.0)
    world, flow = started(tmp_path, engine, at_once=1, grpo={**PLENTY, "async_level": 2})
    policy_swaps = world.context.policy_swaps
    world.run(flow)
    await world.rest(5.0)
    engine.first_token = FirstToken(Version(0), 0.2)
    world.version(policy=digest(b"policy 1"))
    await world.rest(4.0)
    assert policy_swaps.newest is None, "its start is no policy swap"
    world.hold(1, b"policy 1")
    world.changes.notify()
    await world.rest(40.0)
    newest = policy_swaps.newest
    assert (newest.version, newest.first_token_seconds) == (1, None)
    assert newest.weights_seconds == pytest.approx(4.0, abs=0.1)
    assert newest.swapped_seconds == pytest.approx(25.2, abs=0.2)  # sequences, and the load
    engine.first_token = FirstToken(Version(1), 0.5)
    await world.rest(10.0)
    assert policy_swaps.newest.first_token_seconds == newest.swapped_seconds + 0.5
    await world.stop()
