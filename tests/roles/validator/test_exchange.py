"""Exchange of seals and verdicts: a validator sends its seal first."""

from dataclasses import replace

import pytest

from protocol.messages import Verdict, VerdictSeal
from roles.validator.exchange import VerdictExchange
from roles.validator.flow import ValidatorFlow
from tests.roles.validator.test_flow import EPOCH_SECONDS, World, first_of, slot

pytestmark = pytest.mark.virtual

FIVE = {"committee": {"size": 3, "escalated_size": 5}}


def member(world, commit, rank):
    """Return the identity of a rank in the committee of a commit."""
    committee = world.replica.verdicts.committee(commit)
    return world.world.by_peer[committee.ranking[rank]]


async def begun(tmp_path, rank=0):
    """Return a validator of five, its commit, and the others by rank, once it has a verdict."""
    world = World(tmp_path, validators=5, **FIVE)
    world.run(world.flow)
    commit = first_of(world, rank)
    await world.rest(EPOCH_SECONDS + 2)
    others = [member(world, commit, other) for other in range(5) if other != rank]
    return world, commit, others


def about(world, commit, kind):
    """Return the receivers of messages of a kind about a commit."""
    mine = world.replica.verdicts.pools[commit.digest]
    (pool,) = mine.values()
    own = pool.verdicts[world.signer.peer_id]
    wanted = own if kind is Verdict else world.world.verdict_seal(own)
    return [peer for peer, data in world.network.sent if data == wanted.envelope]


async def test_a_verdict_goes_only_to_members_that_have_sealed_theirs(tmp_path):
    world, commit, (second, third, *_) = await begun(tmp_path)
    assert sorted(about(world, commit, VerdictSeal)) == sorted([second.peer_id, third.peer_id])
    assert about(world, commit, Verdict) == []
    world.seal(commit, second)
    await world.rest(1)
    assert about(world, commit, Verdict) == [second.peer_id]
    world.seal(commit, third)
    await world.rest(1)
    assert sorted(about(world, commit, Verdict)) == sorted(
        [second.peer_id, third.peer_id, commit.signer]
    )
    await world.stop()


async def test_a_seal_is_repeated_every_epoch_until_the_verdict_is_here(tmp_path):
    world, commit, (second, third, *_) = await begun(tmp_path)
    world.seal(commit, second)
    world.verdict(commit, second)
    await world.rest(3 * EPOCH_SECONDS)
    seals = about(world, commit, VerdictSeal)
    assert seals.count(second.peer_id) == 1
    assert 3 <= seals.count(third.peer_id) <= 5
    world.verdict(commit, third)
    await world.rest(EPOCH_SECONDS)
    sent = len(about(world, commit, VerdictSeal))
    await world.rest(3 * EPOCH_SECONDS)
    assert len(about(world, commit, VerdictSeal)) == sent, "the commit is certified"
    await world.stop()


async def test_a_disagreement_brings_the_larger_committee_in(tmp_path):
    world, commit, (second, _, *outside) = await begun(tmp_path)
    world.verdict(commit, second, witness=(-(10**10),) * 8)
    await world.rest(1)
    assert {one.peer_id for one in outside} <= set(about(world, commit, VerdictSeal))
    assert about(world, commit, Verdict) == [commit.signer], "the worker could compute the values"
    world.seal(commit, outside[0])
    await world.rest(1)
    assert about(world, commit, Verdict) == [commit.signer, outside[0].peer_id]
    await world.stop()


@pytest.mark.parametrize(("rank", "begins"), [(4, False), (2, True), (0, True)])
async def test_a_member_of_the_larger_committee_begins_with_a_seal_of_the_first(
    tmp_path, rank, begins
):
    world = World(tmp_path, validators=5, **FIVE)
    world.run(world.flow)
    commit = first_of(world, 3)
    await world.rest(EPOCH_SECONDS + 2)
    assert commit.digest not in [item.commit for item in world.verdicts]
    world.seal(commit, member(world, commit, rank))
    await world.rest(2)
    assert (commit.digest in [item.commit for item in world.verdicts]) is begins
    await world.stop()


async def test_a_restart_sends_the_same_seal_and_signs_no_second_verdict(tmp_path):
    world, commit, (second, *_) = await begun(tmp_path)
    await world.stop()
    before = {data for peer, data in world.network.sent if peer == second.peer_id}
    world.network.sent.clear()
    world.flow = ValidatorFlow(world.context, world.engine, world.asked(world.environment))
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS)
    assert {data for peer, data in world.network.sent if peer == second.peer_id} == before
    assert len([one for one in world.verdicts if one.commit == commit.digest]) == 1
    await world.stop()


async def test_nonces_differ_between_commits_and_are_no_hash_of_public_values(tmp_path):
    world = World(tmp_path)
    world.run(world.flow)
    for number in range(3):
        world.commit(signer=world.world.workers[number], **slot(world, number))
    await world.rest(EPOCH_SECONDS + 2)
    assert len({one.nonce for one in world.verdicts}) == len(world.verdicts) == 3
    other = VerdictExchange(replace(world.context, signer=world.others[0]))
    verdict = world.verdicts[0]
    assert other.nonce(verdict.commit, verdict.page) != verdict.nonce
    mine = VerdictExchange(world.context)
    assert mine.nonce(verdict.commit, verdict.page) == verdict.nonce
    assert mine.nonce(verdict.commit, bytes(32)) != verdict.nonce
    await world.stop()
