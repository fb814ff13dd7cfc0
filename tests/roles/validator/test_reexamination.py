"""A drawn member's duty: check again, stay silent or object, and publish the overturn."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from protocol.messages import Objection, Overturn, open_any
from protocol.rollout.agreement import CERTAIN_REASONS
from protocol.rollout.audit import AuditResult
from protocol.rollout.statistics import Extremes, Sums
from protocol.rollout.witness import WitnessValue
from roles.ports.engines import Unscorable
from roles.ports.swarm import RefusedError
from roles.runtime.context import ChangeSignal
from roles.validator.reexamination import Reexamination
from tests.protocol.replica.test_reviews import BAD, GOOD, WORLD, object_to, replica, review

MEASURED = {
    "sums": Sums(1, 1),
    "extremes": Extremes(0, 0, 0, 0, 0),
    "witness": tuple(WitnessValue(-1.0 * (place + 1), place) for place in range(8)),
}
"""The witness values of every honest validator."""


class Swarm:
    """Network of one member: it stores, sends and publishes nothing beyond its own replica."""

    def __init__(self, target, member):
        self.target, self.member = target, WORLD.by_peer[member]
        self.sent, self.published, self.fetched = [], [], []
        self.body = b"body"

    async def fetch_body(self, commit, sources):
        self.fetched.append((commit, sources))
        return self.body

    async def record(self, message):
        signed = WORLD.sealed(message, self.member)
        if self.target.receive(signed.envelope, WORLD.at(11)).fault:
            raise RefusedError
        return signed

    async def send(self, peer, envelope):
        self.sent.append((peer, envelope))
        return True

    async def publish(self, topic, message):
        self.published.append((topic, message))
        return await self.record(message)


class Member:
    """One drawn member of the panel of a commit, with scripted findings."""

    def __init__(self, commit=GOOD, place=0, finding=None):
        self.target = replica()
        self.panel = review(self.target, commit).panel
        self.me = self.panel.members[place]
        self.network = Swarm(self.target, self.me)
        self.examined, self.finding = [], finding
        verifier = SimpleNamespace(policy=lambda _: object(), examine=self._examine)
        context = SimpleNamespace(
            replica=self.target,
            manifest=WORLD.manifest,
            peer_id=self.me,
            epoch_seconds=10.0,
            network=self.network,
            changes=ChangeSignal(),
        )
        self.duty = Reexamination(context, verifier, asyncio.Lock())

    async def _examine(self, commit, page, body):
        self.examined.append((commit, page))
        return self.finding if commit.digest == GOOD.digest else None

    async def ticks(self, count=6, *, is_busy=False):
        for _ in range(count):
            await self.duty.attend(is_busy=is_busy)
            await asyncio.sleep(0)

    def objections(self):
        return self.target.reviews.objections(GOOD.digest, "computation")


def found(reason) -> AuditResult:
    measured = {} if reason in ("format", "termination", "reward-history") else MEASURED
    return AuditResult(reason, **measured)


async def reasons(member) -> set[str]:
    """Return the reasons of the objections that a member sends."""
    await member.ticks()
    await member.duty.close()
    kinds = {Objection.kind: Objection}
    opened = [open_any(one, kinds, WORLD.run_id, lambda *_: True) for _, one in member.network.sent]
    return {one.message.reason for one in opened}


async def test_a_member_that_agrees_sends_nothing():
    member = Member(finding=found("accepted"))
    assert await reasons(member) == set()
    assert [commit for commit, _ in member.examined].count(GOOD) == 1, "and checks once"


async def test_it_checks_with_the_witness_points_of_the_certificate():
    member = Member(finding=found("accepted"))
    await member.ticks()
    (page,) = [page for commit, page in member.examined if commit == GOOD]
    assert page.digest == WORLD.book.drawing(GOOD).digest


@pytest.mark.parametrize("reason", sorted(CERTAIN_REASONS | {"reward"}))
async def test_a_certain_fault_is_sent_to_all_other_members(reason):
    member = Member(finding=found(reason))
    assert await reasons(member) == {reason}
    receivers = {peer for peer, _ in member.network.sent}
    assert receivers == set(member.panel.members) - {member.me}


async def test_wrong_rewards_by_history_are_wrong_rewards():
    assert await reasons(Member(finding=found("reward-history"))) == {"reward"}


@pytest.mark.parametrize("reason", ["statistics", "proofs", "logprobs", "sampling", "history"])
async def test_a_borderline_result_is_no_objection(reason):
    """A crafted rollout must not be able to frame the members that accepted it."""
    assert await reasons(Member(finding=found(reason))) == set()


async def test_other_witness_values_are_no_objection_by_themselves():
    """They contradict the committee, but the engine of this member may be the wrong one."""
    far = tuple(WitnessValue(-50.0, 9) for _ in range(8))
    member = Member()
    drawn = review(member.target, GOOD)
    for reason in ("statistics", "accepted"):
        assert member.duty.objection(drawn, replace(found(reason), witness=far)) == ""


async def test_a_rollout_without_a_score_is_no_objection():
    assert await reasons(Member(finding=Unscorable("no scorer"))) == set()


async def test_a_body_that_is_gone_is_no_objection():
    member = Member(finding=found("computation"))
    member.network.body = None
    assert await reasons(member) == set()
    assert member.network.fetched


async def test_fresh_commits_come_first():
    member = Member(finding=found("computation"))
    await member.ticks(is_busy=True)
    assert not member.network.fetched
    await member.ticks()
    assert member.network.fetched


async def test_without_all_deciding_verdicts_a_member_does_not_object():
    member = Member(finding=found("computation"))
    entry = member.target.ledger.commits.entries[GOOD.digest]
    pool = member.target.verdicts.pool(GOOD.digest, entry.certificate.message.page)
    drawn = review(member.target, GOOD)
    assert member.duty.objection(drawn, found("computation")) == "computation"
    del pool.verdicts[next(iter(pool.verdicts))]
    assert member.duty.objection(drawn, found("computation")) == ""


async def test_an_accepted_check_objects_to_a_rejection_that_slashed():
    member = Member(BAD)
    drawn = review(member.target, BAD)
    assert member.duty.objection(drawn, found("accepted")) == "accepted"
    for reason in ("computation", "statistics", "reward"):
        assert member.duty.objection(drawn, found(reason)) == ""


async def test_the_member_of_the_lowest_rank_publishes_the_overturn():
    member = Member(finding=found("accepted"))
    object_to(member.target, GOOD, "computation")
    await member.ticks()
    ((_, overturn),) = member.network.published
    assert isinstance(overturn, Overturn)
    assert member.target.reviews.reason(GOOD.digest) == "computation"


async def test_other_members_wait_for_those_before_them():
    member = Member(place=3, finding=found("accepted"))
    object_to(member.target, GOOD, "computation")
    await member.ticks()
    assert not member.network.published


async def test_an_objection_ends_with_the_overturn():
    member = Member(finding=found("computation"))
    await member.ticks()
    assert member.objections()
    before = len(member.network.sent)
    object_to(member.target, GOOD, "computation")
    await member.ticks()
    await asyncio.sleep(0)
    assert len(member.network.sent) == before
    await member.duty.close()
