import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from protocol.ledger.commits import CommitState
from protocol.ledger.reputation import has_reputation
from protocol.messages import (
    UNMEASURED,
    WITNESSES,
    Certificate,
    Verdict,
    VerdictSeal,
    envelope_kind,
)
from protocol.rollout.assignment import assign
from protocol.rollout.body import RolloutSequence, encode_body
from protocol.rollout.statistics import SCALE
from roles.ports.engines import EngineError
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.retry import PAUSE_EPOCHS_MAX
from roles.validator import flow as module
from roles.validator import judgement
from roles.validator.flow import (
    CHECKS_AT_ONCE,
    CHECKS_PER_WORKER,
    UNTRUSTED_CHECKS,
    ValidatorFlow,
)
from tests.worlds.flow_world import ANSWER, END, VALUE, Engine, FlowWorld, Task, Unsure
from tests.worlds.messages import found, identity, set_outcome
from tests.worlds.page_book import PageBook

pytestmark = pytest.mark.virtual

EPOCH_SECONDS = 10.0
COMMITTEE = {"committee": {"size": 2, "escalated_size": 3}}
GOOD = RolloutSequence((ANSWER, END), (-0.5, -0.5), 1_000_000, (b"proof",))


class World(FlowWorld):
    """A validator that is in every committee, as there are no more than it needs."""

    def __init__(self, tmp_path, validators=2, **sections):
        super().__init__(tmp_path, "validator 0", validators=validators, **COMMITTEE | sections)
        self.engine = Engine()
        self.environment = Task()
        self.flow = ValidatorFlow(self.context, self.engine, self.asked(self.environment))
        self.others = [one for one in self.world.validators if one is not self.signer]

    def commit(self, body=None, signer=None, slot=0, **changes):
        """Accept a commit to ``body``, by default an honest one, of the present epoch."""
        sampling = self.manifest.sampling
        count = sampling.group_size * sampling.prompts_per_rollout
        data = encode_body([GOOD] * count) if body is None else body
        fields = {
            "epoch": self.context.epoch(),
            "checkpoint": self.replica.ledger.chain.get(0).digest,
            "body": digest(data),
            "body_bytes": len(data),
            "tokens": 2 * count,
        }
        signer = signer or self.world.workers[0]
        signed = self.world.commit(signer, slot, **fields | changes)
        self.take(signed)
        self.network.bodies[digest(data)] = data
        self.changes.notify()
        return signed

    def verdict(self, commit, signer=None, **changes):
        """Accept another validator's verdict."""
        self.take(self.signed(commit, signer, **changes))
        self.changes.notify()

    def seal(self, commit, signer=None, **changes):
        """Accept the seal of another validator's verdict."""
        self.take(self.world.verdict_seal(self.signed(commit, signer, **changes)))
        self.changes.notify()

    def signed(self, commit, signer=None, **changes):
        """Return a verdict with the witness values of this validator's engine."""
        fields = {"page": self.replica.verdicts.committee(commit).page.digest}
        if changes.get("reason") not in UNMEASURED:
            fields["witness"] = (round(VALUE.logprob * SCALE),) * WITNESSES
            fields["replays"] = (VALUE.replay,) * WITNESSES
        return self.world.verdict(signer or self.others[0], commit, **fields | changes)

    def sent(self, kind):
        """Return the receivers of messages of a kind, in order."""
        return [peer for peer, data in self.network.sent if envelope_kind(data) == kind.kind]

    @property
    def verdicts(self):
        return [item.message for item in self.network.recorded if isinstance(item.message, Verdict)]

    @property
    def certificates(self):
        found = (item.message for item in self.network.published)
        return [message for message in found if isinstance(message, Certificate)]


async def test_an_honest_rollout_is_accepted_and_certified_together(tmp_path):
    world = World(tmp_path)
    world.run(world.flow)
    commit = world.commit()
    await world.rest(EPOCH_SECONDS - 1)
    assert world.verdicts == [], "who checks it is not known before the next epoch"
    await world.rest(2)
    (verdict,) = world.verdicts
    assert (verdict.accept, verdict.reason) == (True, "accepted")
    other = world.others[0].peer_id
    assert (world.sent(VerdictSeal), world.sent(Verdict)) == ([other], [])
    world.seal(commit)
    await world.rest(1)
    assert sorted(world.sent(Verdict)) == sorted([other, commit.signer])
    assert world.certificates == []
    world.verdict(commit)
    await world.rest(EPOCH_SECONDS)
    (certificate,) = world.certificates
    assert (certificate.accepted, certificate.escalated) == (True, False)
    assert world.replica.ledger.commits.entries[commit.digest].state is CommitState.CERTIFIED
    await world.rest(EPOCH_SECONDS)
    assert len(world.network.recorded) == 2
    assert len(world.network.sent) == 3
    await world.stop()


def bodies(count):
    out = (31 + 1, END)
    return {
        "format": b"no body",
        "format ": encode_body([GOOD] * (count - 1)),
        "format  ": encode_body([RolloutSequence(out, (-0.5, -0.5), 0, ())] * count),
        "termination": encode_body(
            [RolloutSequence((ANSWER, 7), (-0.5, -0.5), 1_000_000, ())] * count
        ),
    }


@pytest.mark.parametrize("reason", bodies(4))
async def test_faults_visible_without_a_model_need_no_measurement(tmp_path, reason):
    world = World(tmp_path)
    world.run(world.flow)
    world.commit(bodies(4)[reason])
    await world.rest(EPOCH_SECONDS + 2)
    assert [item.reason for item in world.verdicts] == [reason.strip()]
    assert world.engine.loads == []
    await world.stop()


WRONG = replace(GOOD, tokens=(7, END))
"""Earns no reward, whatever it claims."""


async def test_a_reward_that_differs_is_rejected_after_the_rest_was_found_exact(tmp_path):
    world = World(tmp_path)
    world.run(world.flow)
    commit = world.commit(encode_body([GOOD, GOOD, WRONG, GOOD]))
    await world.rest(EPOCH_SECONDS + 2)
    (verdict,) = world.verdicts
    assert (verdict.accept, verdict.reason) == (False, "reward")
    assert "sequence 2: claimed 1, recomputed 0" in verdict.detail
    assert len(verdict.means) == 8, "and what was measured is stated"
    settle(world, commit, "reward")
    assert not world.replica.ledger.workers.is_slashed(commit.signer)
    await world.stop()


async def test_a_reward_that_differs_is_no_excuse_for_other_weights(tmp_path):
    world = World(tmp_path)
    world.engine.honest = False
    world.run(world.flow)
    world.commit(encode_body([WRONG] * 4))
    await world.rest(EPOCH_SECONDS + 2)
    assert [item.reason for item in world.verdicts] == ["computation"]
    await world.stop()


def settle(world, commit, reason="accepted"):
    """Give a commit its outcome, as a committee would."""
    accepted = reason == "accepted"
    certificate = world.world.certificate(commit, accepted=accepted, escalated=not accepted)
    measured = {"chunks": 1, "means": (0,) * 8}
    assert set_outcome(world.replica.ledger, certificate, found(reason, **measured))


@pytest.mark.parametrize("others", ["exact", "alike"])
async def test_rewards_that_differ_again_and_again_end_a_worker_that_is_alone_with_it(
    tmp_path, others
):
    world = World(tmp_path)
    liar, other, _ = world.world.workers
    ends = others == "exact"
    for signer, reason in ((liar, "reward"), (other, "accepted" if ends else "reward")):
        for _ in range(4):
            settle(world, world.commit(signer=signer, **following(world, signer)), reason)
    assert not world.replica.ledger.workers.is_slashed(liar.peer_id)
    world.run(world.flow)
    fifth = world.commit(encode_body([WRONG] * 4), liar, **following(world, liar))
    await world.rest(EPOCH_SECONDS + 2)
    (verdict,) = world.verdicts
    assert verdict.reason == ("reward-history" if ends else "reward")
    assert bool(world.engine.measured) is not ends, "a lie needs no model"
    settle(world, fifth, verdict.reason)
    assert world.replica.ledger.workers.is_slashed(liar.peer_id) is ends
    assert not world.replica.ledger.workers.is_slashed(other.peer_id)
    await world.stop()


async def test_a_rule_in_doubt_is_logged_once_and_when_it_is_over(tmp_path):
    world = World(tmp_path)
    with capture_logs() as logs:
        world.run(world.flow)
        for signer in world.world.workers[:2]:
            for _ in range(2):
                settle(world, world.commit(signer=signer, **following(world, signer)), "reward")
        await world.rest(3 * EPOCH_SECONDS)
        for signer in world.world.workers[:2]:
            for _ in range(3):
                settle(world, world.commit(signer=signer, **following(world, signer)))
        await world.rest(2 * EPOCH_SECONDS)
    told = [one for one in logs if one["event"].startswith("rule ")]
    assert [(one["event"], one["direction"]) for one in told] == [
        ("rule in doubt", "reward"),
        ("rule no longer in doubt", "reward"),
    ]
    await world.stop()


def following(world, worker):
    return {"slot": world.replica.ledger.commits.next_slot(worker.peer_id)}


async def test_a_wrong_computation_is_rejected_by_the_larger_committee(tmp_path):
    world = World(tmp_path, validators=3)
    world.engine.honest = False
    world.run(world.flow)
    commit = world.commit()
    await world.rest(6 * EPOCH_SECONDS + 2)  # by then it is escalated to all three
    (verdict,) = world.verdicts
    assert (verdict.accept, verdict.reason) == (False, "computation")
    world.verdict(commit, accept=False, reason="computation")
    await world.rest(2 * EPOCH_SECONDS)
    (certificate,) = world.certificates
    assert (certificate.accepted, certificate.escalated) == (False, True)
    assert world.replica.ledger.workers.is_slashed(commit.signer)
    world.commit(slot=1)  # no check is spent on it
    await world.rest(6 * EPOCH_SECONDS)
    assert [item.commit for item in world.verdicts] == [commit.digest]
    await world.stop()


async def test_a_reject_brings_the_larger_committee_in_at_once(tmp_path):
    world = World(tmp_path, validators=6)
    world.run(world.flow)
    for n in range(60):
        commit = world.commit(signer=world.world.workers[n % 3], **slot(world, n))
        committee = world.pages.committee(commit)
        if committee.ranking.index(world.signer.peer_id) == 2:
            break
    else:
        pytest.fail("never third in a committee")
    await world.rest(EPOCH_SECONDS + 2)
    assert commit.digest not in [item.commit for item in world.verdicts]
    world.verdict(commit, world.world.by_peer[committee.first[0]], accept=False)
    await world.rest(2)
    assert commit.digest in [item.commit for item in world.verdicts]
    await world.stop()


def slot(world, n):
    return following(world, world.world.workers[n % 3])


async def test_a_stored_verdict_is_never_given_again(tmp_path):
    world = World(tmp_path)
    commit = world.commit()
    await asyncio.sleep(EPOCH_SECONDS + 2)
    own = world.signed(commit, world.signer, accept=False)
    world.replica.restore(own.envelope)
    world.seal(commit)
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS)
    assert world.verdicts == []
    seal = world.world.verdict_seal(own)
    assert {envelope for _, envelope in world.network.sent} == {own.envelope, seal.envelope}
    await world.stop()


async def test_undelivered_verdicts_are_sent_again(tmp_path):
    world = World(tmp_path)
    other = world.others[0].peer_id
    world.network.unreachable[other] = None
    world.run(world.flow)
    commit = world.commit()
    await world.rest(EPOCH_SECONDS + 2)
    world.seal(commit)
    await world.rest(2 * EPOCH_SECONDS)
    assert [peer for peer, _ in world.network.sent] == [commit.signer]
    world.network.unreachable.clear()
    await world.rest(2 * EPOCH_SECONDS)
    assert world.sent(Verdict) == [commit.signer, other]
    await world.stop()


def first_of(world, rank, count=24):
    """Commit until this validator has a rank in the committee; return that commit."""
    for n in range(count):
        commit = world.commit(signer=world.world.workers[n % 3], **slot(world, n))
        if world.pages.committee(commit).ranking.index(world.signer.peer_id) == rank:
            return commit
    raise AssertionError("another seed is needed: we never have this place")


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_certificate_is_published_by_the_next_in_rank_when_the_first_is_silent(
    tmp_path, rank
):
    world = World(tmp_path)
    world.run(world.flow)
    commit = first_of(world, rank)
    await world.rest(EPOCH_SECONDS + 2)
    world.verdict(commit)
    published = lambda: [item.commit for item in world.certificates]  # noqa: E731
    await world.rest(EPOCH_SECONDS / 2 - 1)
    assert (commit.digest in published()) == (rank == 0)
    await world.rest(EPOCH_SECONDS / 2)
    assert commit.digest in published()
    await world.stop()


async def test_a_silent_committee_is_enlarged_after_its_deadline_and_not_before(tmp_path):
    world = World(tmp_path, validators=3)
    deadline_epochs = world.manifest.committee.escalate_after_epochs
    world.run(world.flow)
    commit = first_of(world, 2)
    given = lambda: [item.commit for item in world.verdicts]  # noqa: E731
    await world.rest((deadline_epochs + 2) * EPOCH_SECONDS - 1)
    page = world.replica.pages.drawing(commit.digest)
    assert world.context.epoch() == page.epoch + deadline_epochs
    assert commit.digest not in given()
    await world.rest(EPOCH_SECONDS / 2 + 2)
    assert commit.digest in given()
    await world.stop()


# Missing data


async def test_verdict_needs_policy_and_body(tmp_path):
    world = World(tmp_path, committee=COMMITTEE["committee"] | {"expire_after_epochs": 90})
    policy = world.policies.held.pop(0)
    world.run(world.flow)
    first = world.commit()
    lost = world.commit(b"lost", signer=world.world.workers[1], body_bytes=4)
    del world.network.bodies[digest(b"lost")]
    await world.rest(3 * EPOCH_SECONDS)
    assert world.network.asked == [], "without the policy there is no use for a body"
    world.policies.held[0] = policy
    await world.rest(3 * EPOCH_SECONDS)
    assert [item.commit for item in world.verdicts] == [first.digest]
    times = [wanted for wanted, _ in world.network.asked].count(lost.message.body)
    assert 2 <= times <= 4
    world.network.bodies[lost.message.body] = b"lost"
    await world.rest(2 * EPOCH_SECONDS)
    assert lost.digest in [item.commit for item in world.verdicts]
    await world.stop()


async def test_without_a_page_nobody_is_drawn_and_later_the_deadline_counts_from_it(tmp_path):
    rules = COMMITTEE["committee"] | {"expire_after_epochs": 20}
    world = World(tmp_path, validators=3, committee=rules)
    deadline_epochs = world.manifest.committee.escalate_after_epochs
    begins = deadline_epochs + 2
    world.pages.stop()
    world.run(world.flow)
    commits = [world.commit(signer=world.world.workers[n % 3], **slot(world, n)) for n in range(24)]
    await world.rest(begins * EPOCH_SECONDS + 1)
    world.pages.write(begins)
    await world.rest(EPOCH_SECONDS)
    assert world.verdicts == [], "listed, and not drawn"
    world.pages.write(begins + 1)
    third = {one.digest for one in commits if rank_of(world, one) == 2}
    given = lambda: {item.commit for item in world.verdicts}  # noqa: E731
    await world.rest(EPOCH_SECONDS)
    assert 0 < len(third) < len(commits)
    assert given() == {one.digest for one in commits} - third
    await world.rest((deadline_epochs + 1) * EPOCH_SECONDS)
    assert third <= given()
    await world.stop()


def rank_of(world, commit):
    return world.replica.verdicts.committee(commit).ranking.index(world.signer.peer_id)


async def test_a_policy_that_the_engine_refuses_is_handed_back_and_nobody_is_judged(tmp_path):
    world = World(tmp_path)
    policy = world.policies.held[0]
    world.engine.refused[policy.digest] = None
    world.run(world.flow)
    world.commit()
    await world.rest(2 * EPOCH_SECONDS)
    assert world.policies.discarded == [0]
    assert world.verdicts == []
    world.engine.refused.clear()
    world.policies.held[0] = policy
    await world.rest(2 * EPOCH_SECONDS)
    assert [item.accept for item in world.verdicts] == [True]
    await world.stop()


async def test_a_policy_is_held_while_the_engine_reads_it(tmp_path):
    world, in_use = World(tmp_path), []
    world.engine.on_load = lambda: in_use.append(list(world.policies.in_use))
    world.run(world.flow)
    world.commit()
    await world.rest(2 * EPOCH_SECONDS)
    assert (in_use, world.policies.in_use) == ([[0]], [])
    await world.stop()


async def test_an_engine_that_has_dropped_a_policy_gets_it_again(tmp_path):
    world = World(tmp_path)
    world.engine.forgetful = 1
    world.run(world.flow)
    world.commit()
    await world.rest(3 * EPOCH_SECONDS)
    assert world.engine.loads == [0, 0]
    assert [item.accept for item in world.verdicts] == [True]
    await world.stop()


async def test_the_engine_is_given_again_what_it_must_have_dropped(tmp_path):
    level = 2
    world = World(tmp_path, grpo={"async_level": level})
    world.run(world.flow)
    for version in range(1, level + 3):
        world.version()
        world.hold(version, f"policy {version}".encode())
    worker = world.world.workers[0]
    for version in (0, 1, 2, 3, 0):
        number = world.replica.ledger.commits.next_slot(worker.peer_id)
        checkpoint = world.replica.ledger.chain.get(version).digest
        world.commit(version=version, checkpoint=checkpoint, slot=number)
        await world.rest(2 * EPOCH_SECONDS)
    assert world.engine.loads == [0, 1, 2, 3, 0]
    assert len(world.verdicts) == 5
    await world.stop()


async def test_a_version_superseded_meanwhile_is_nobodys_fault(tmp_path):
    world = World(tmp_path, trainers=2)
    genesis = world.replica.ledger.chain.head
    old = world.version()
    world.hold(1, b"policy 1")

    def supersede():
        world.engine.on_load = lambda: None
        world.adopt(world.world.checkpoint(genesis, 1, term=1, policy=digest(b"another")))
        del world.policies.held[1]

    world.engine.on_load = supersede
    world.run(world.flow)
    world.commit(version=1, checkpoint=old.digest)
    await world.rest(4 * EPOCH_SECONDS)
    assert world.verdicts == []
    await world.stop()


async def test_commit_settled_meanwhile_is_not_measured(tmp_path):
    world = World(tmp_path)
    load = world.engine.load

    async def slow(policy):
        await asyncio.sleep(2 * EPOCH_SECONDS)
        await load(policy)

    world.engine.load = slow
    world.run(world.flow)
    first = world.commit()
    second = world.commit(signer=world.world.workers[1])
    await world.rest(EPOCH_SECONDS + 5)
    for commit in (first, second):
        set_outcome(world.replica.ledger, world.world.certificate(commit), found())
    await world.rest(6 * EPOCH_SECONDS)
    assert len(world.engine.measured) == 1
    await world.stop()


# Withheld bodies


async def test_one_worker_takes_two_places_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKS_AT_ONCE", 4)
    world = World(tmp_path)
    fetching, most = {}, []
    fetch = world.network.fetch_body

    async def stall(commit, sources):
        if sources[0] != world.world.workers[0].peer_id:
            return await fetch(commit, sources)
        fetching[commit.digest] = None
        most.append(len(fetching))
        await asyncio.sleep(10)
        del fetching[commit.digest]
        return None

    world.network.fetch_body = stall
    for number in range(8):
        world.commit(f"withheld {number}".encode(), slot=number)
    honest = world.commit(signer=world.world.workers[1])
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS + 3)
    assert [item.commit for item in world.verdicts] == [honest.digest]
    await world.rest(5 * EPOCH_SECONDS)
    assert max(most) == CHECKS_PER_WORKER
    await world.stop()


async def test_untried_commits_are_checked_first(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKS_AT_ONCE", 1)
    world = World(tmp_path)
    world.run(world.flow)
    for n in range(2):
        worker = world.world.workers[n]
        lost = world.commit(f"lost {n}".encode(), signer=worker, body_bytes=6)
        del world.network.bodies[lost.message.body]
    await world.rest(3 * EPOCH_SECONDS)
    honest = world.commit(signer=world.world.workers[2])
    world.network.asked.clear()
    await world.rest(EPOCH_SECONDS + 2)
    assert honest.digest in [item.commit for item in world.verdicts]
    await world.stop()


async def test_least_tried_commits_are_checked_first(tmp_path, monkeypatch):
    """Bodies that take long to fail are due again immediately after the failure."""
    monkeypatch.setattr(module, "CHECKS_AT_ONCE", 1)
    world = World(tmp_path)
    fetch = world.network.fetch_body

    async def stall(commit, sources):
        if commit.message.body not in world.network.bodies:
            await asyncio.sleep(2 * EPOCH_SECONDS)
        return await fetch(commit, sources)

    world.network.fetch_body = stall
    for worker in world.world.workers:
        known(world, worker)
    for n, worker in enumerate(world.world.workers[:2]):
        lost = world.commit(f"lost {n}".encode(), worker, slot=1)
        del world.network.bodies[lost.message.body]
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS + 1)
    honest = world.commit(signer=world.world.workers[2], slot=1)
    await world.rest(5 * EPOCH_SECONDS)
    assert honest.digest in [item.commit for item in world.verdicts]
    await world.stop()


# The own disk, and refusals


async def test_a_full_disk_delays_verdicts_and_certificates(tmp_path):
    world = World(tmp_path)
    world.network.errors.append(StorageFullError("no room"))
    world.run(world.flow)
    commit = world.commit()
    await world.rest(EPOCH_SECONDS + 2)
    assert "disk full" in str(world.conditions)
    await world.rest(EPOCH_SECONDS)
    assert len(world.verdicts) == 1
    assert str(world.conditions) == ""
    world.network.errors.append(StorageFullError("no room"))
    world.verdict(commit)
    await world.rest(EPOCH_SECONDS / 2 + 1)
    assert world.certificates == []
    await world.rest(3 * EPOCH_SECONDS)
    assert len(world.certificates) == 1
    await world.stop()


async def test_a_refused_verdict_is_no_reason_to_stop(tmp_path):
    world = World(tmp_path)
    world.network.errors.append(RefusedError("not now"))
    world.run(world.flow)
    world.commit()
    await world.rest(3 * EPOCH_SECONDS)
    assert len(world.verdicts) == 1
    await world.stop()


@pytest.mark.parametrize("error", [EngineError("no memory"), ZeroDivisionError("ours")])
async def test_a_check_that_breaks_gives_no_verdict_and_is_done_later(tmp_path, error):
    world = World(tmp_path)
    world.engine.errors.append(error)
    world.run(world.flow)
    commit = world.commit()
    await world.rest(EPOCH_SECONDS + 2)
    assert world.verdicts == []
    assert str(world.conditions).startswith("validator failed: ")
    assert str(world.conditions).endswith("; trying again")
    await world.rest(EPOCH_SECONDS)
    (verdict,) = world.verdicts
    assert (verdict.commit, verdict.accept) == (commit.digest, True)
    assert str(world.conditions) == ""
    await world.stop()


async def test_the_task_is_asked_in_the_background(tmp_path):
    world = World(tmp_path)
    asked = world.environment.watch(world.background)
    world.run(world.flow)
    world.commit()
    await world.rest(EPOCH_SECONDS + 2)
    assert len(world.verdicts) == 1
    assert asked == [True] * 6  # 2 prompts of 4 sequences
    await world.stop()


async def test_failing_check_is_retried_with_backoff(tmp_path):
    world = World(tmp_path)
    poison = world.commit()
    bad = assign(world.manifest, poison.signer, 0)[2].problem_seed
    tried = []

    def choke(seed):
        if seed == bad:
            tried.append(world.now())
            raise ValueError("a bug of the task")

    world.environment.on_score = choke
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS + 2)
    assert "validator failed: ValueError: a bug of the task" in str(world.conditions)
    honest = world.commit(signer=world.world.workers[1])
    await world.rest(2 * EPOCH_SECONDS + 2)
    assert [item.commit for item in world.verdicts] == [honest.digest]
    await world.rest(25 * EPOCH_SECONDS)
    pauses = [(after - before) / EPOCH_SECONDS for before, after in pairwise(tried)]
    assert pauses == sorted(pauses) and max(pauses) <= PAUSE_EPOCHS_MAX + 1
    assert 3 <= len(tried) <= 8
    assert [item.commit for item in world.verdicts] == [honest.digest]
    await world.stop()


async def test_settled_commit_clears_its_failures(tmp_path):
    world = World(tmp_path, validators=3)
    world.engine.errors += [EngineError("gone")] * 100
    world.run(world.flow)
    commit = world.commit()
    await world.rest(7 * EPOCH_SECONDS)
    assert "gone" in str(world.conditions)
    set_outcome(world.replica.ledger, world.world.certificate(commit), found())
    await world.rest(EPOCH_SECONDS)
    assert str(world.conditions) == ""
    await world.stop()


async def test_it_ends_when_its_checks_have_ended(tmp_path):
    """A check may hold a file or a stream that the daemon closes next."""
    world = World(tmp_path)
    ended = []

    async def slow_to_end(*_arguments):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append(True)

    world.network.fetch_body = slow_to_end
    world.run(world.flow)
    world.commit()
    await world.rest(EPOCH_SECONDS + 2)
    await world.stop()
    assert ended == [True]


async def test_forgotten_commits_leave_nothing_behind(tmp_path):
    world = World(tmp_path)
    world.run(world.flow)
    commit = world.commit()
    await world.rest(EPOCH_SECONDS + 2)
    world.seal(commit)
    world.verdict(commit)
    lost = world.commit(b"lost", signer=world.world.workers[1], body_bytes=4)
    del world.network.bodies[lost.message.body]
    await world.rest(45 * EPOCH_SECONDS)
    flow = world.flow
    exchange = flow._exchange
    sent = (exchange._seals, exchange._delivered, exchange._sending)
    tables = (flow._retry_at, *sent, flow._decided_at, flow._attempts)
    assert [len(table) for table in tables] == [0] * 6
    await world.stop()


async def test_the_assignment_is_that_of_the_checkpoint_which_was_named(tmp_path):
    world = World(tmp_path)
    world.run(world.flow)
    commit = world.commit()
    expected = assign(world.manifest, commit.signer, 0)
    seen = []
    measure = world.engine.measure

    async def look(version, requests, temperature):
        seen.extend(request.seed for request in requests)
        return await measure(version, requests, temperature)

    world.engine.measure = look
    await world.rest(EPOCH_SECONDS + 2)
    assert seen == [item.noise_seed for item in expected]
    await world.stop()


async def test_measured_sequences_are_drawn_after_the_commit(tmp_path, monkeypatch):
    """The beacon of the commit's own epoch is known to the worker at the time of the commit."""
    drawn = []

    def spy(manifest, lot, rewards):
        drawn.append((manifest, lot, len(rewards)))
        return [1]

    monkeypatch.setattr(judgement, "audited", spy)
    world = World(tmp_path)
    seen = []
    measure = world.engine.measure

    async def look(version, requests, temperature):
        seen.extend(request.seed for request in requests)
        return await measure(version, requests, temperature)

    world.engine.measure = look
    world.run(world.flow)
    commit = world.commit()
    await world.rest(EPOCH_SECONDS + 2)
    beacon = world.pages.committee(commit).page.beacon
    assert drawn == [(world.manifest, beacon + commit.digest, commit.message.sequences)]
    expected = assign(world.manifest, commit.signer, 0)
    assert seen == [expected[1].noise_seed]
    await world.stop()


async def test_validator_drawn_later_checks_then(tmp_path):
    """A longer branch of pages draws other committees."""
    world = World(tmp_path, validators=6)
    world.run(world.flow)
    commits = [world.commit(signer=world.world.workers[n % 3], **slot(world, n)) for n in range(24)]
    await world.rest(EPOCH_SECONDS + 2)
    world.pages.stop()
    ours = drawn_for(world, commits)
    assert len(ours) < len(commits), "another seed is needed: we are drawn for all of them"
    assert {verdict.commit for verdict in world.verdicts} <= ours
    await world.rest(3 * EPOCH_SECONDS)
    listed = Contents(commits=tuple(one.digest for one in commits))
    branch = PageBook(world.manifest, world.world.validators, {3: listed}, first=3)
    branch.show(world.replica, 4, first=3)
    world.changes.notify()
    later = drawn_for(world, commits)
    assert later - ours, "another seed is needed: we are drawn for none of the others"
    await world.rest(6 * EPOCH_SECONDS)  # by then the larger committee is due
    assert later <= {verdict.commit for verdict in world.verdicts}
    await world.stop()


def drawn_for(world, commits):
    """Return the commits whose larger committee has this node."""
    return {
        commit.digest
        for commit in commits
        if world.signer.peer_id in world.replica.verdicts.committee(commit).escalated
    }


async def test_without_its_disk_a_validator_judges_only_what_is_drawn_later(tmp_path):
    """The validator may have signed another verdict on an earlier commit."""
    world = World(tmp_path)
    world.commit()
    await world.rest(EPOCH_SECONDS)
    world.network.judged_before = world.context.epoch()
    world.run(world.flow)
    after = world.commit(slot=1)
    await world.rest(3 * EPOCH_SECONDS)
    assert [item.commit for item in world.verdicts] == [after.digest]
    await world.stop()


async def test_a_commit_that_came_too_late_is_not_judged(tmp_path):
    """The author may have waited for this committee."""
    world = World(tmp_path)
    world.run(world.flow)
    await world.rest(5 * EPOCH_SECONDS)
    taken, world.take = (
        world.take,
        lambda signed: world.replica.receive(signed.envelope, world.now(), anti_entropy=True),
    )
    late = world.commit(epoch=0)
    world.take = taken
    timely = world.commit(signer=world.world.workers[1])
    await world.rest(3 * EPOCH_SECONDS)
    assert [verdict.commit for verdict in world.verdicts] == [timely.digest]
    assert not world.replica.ledger.commits.entries[late.digest].timely
    await world.stop()


@pytest.mark.parametrize("difference", [-1, 1])
async def test_a_body_has_exactly_the_length_that_its_commit_says(tmp_path, difference):
    """A worker that could choose the number could choose the committee and the audit with it."""
    world = World(tmp_path)
    world.run(world.flow)
    count = world.manifest.sampling.group_size * world.manifest.sampling.prompts_per_rollout
    world.commit(body_bytes=len(encode_body([GOOD] * count)) + difference)
    await world.rest(2 * EPOCH_SECONDS)
    (verdict,) = world.verdicts
    assert (verdict.accept, verdict.reason) == (False, "format")
    assert "bytes, its commit says" in verdict.detail
    await world.stop()


async def test_a_reward_below_zero_is_recomputed_and_prompts_say_the_length(tmp_path):
    targets = {"length_targets": (60,), "length_penalty": 0.1}
    world = World(tmp_path, sampling=targets)
    world.run(world.flow)
    short = RolloutSequence((ANSWER, END), (-0.5, -0.5), -4_800_000, (b"proof",))
    honest = world.commit(encode_body([short] * 4))
    liar = replace(short, reward=-4_799_999)
    world.commit(encode_body([short] * 3 + [liar]), world.world.workers[1])
    await world.rest(EPOCH_SECONDS + 2)
    verdicts = {item.commit: item.reason for item in world.verdicts}
    assert sorted(verdicts.values()) == ["accepted", "reward"]
    assert verdicts[honest.digest] == "accepted"
    asked = [
        [Task().prompt(item.problem_seed, 60) for item in items]
        for items in (assign(world.manifest, one.peer_id, 0) for one in world.world.workers[:2])
    ]
    assert world.engine.prompts in asked
    await world.stop()


@pytest.mark.parametrize("forged", [False, True])
async def test_there_is_no_verdict_on_a_rollout_without_a_score(tmp_path, forged):
    """No accept, no reject and no second attempt; other rollouts are judged as before."""
    world = World(tmp_path)
    task = Unsure(world.background)
    flow = ValidatorFlow(world.context, world.engine, task)
    claimed = [replace(GOOD, reward=0 if forged and n == 0 else GOOD.reward) for n in range(4)]
    commit = world.commit(encode_body(claimed))
    items = assign(world.manifest, commit.signer, 0)
    task.unsure[items[3].problem_seed] = None
    world.run(flow)
    await world.rest(2 * EPOCH_SECONDS + 2)
    assert task.asked == [item.problem_seed for item in items]
    honest = world.commit(signer=world.world.workers[1])
    await world.rest(3 * EPOCH_SECONDS)
    assert [item.commit for item in world.verdicts] == [honest.digest]
    assert task.asked.count(items[0].problem_seed) == 2, "once for each sequence of the prompt"
    assert not world.replica.ledger.workers.is_slashed(commit.signer)
    assert str(world.conditions) == ""
    await world.stop()


# Untrusted workers


def known(world, worker):
    """Certify a rollout of a worker."""
    first = world.commit(f"earlier of {worker.peer_id}".encode(), signer=worker)
    set_outcome(world.replica.ledger, world.world.certificate(first), found())
    return first


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_crowd_of_untrusted_peers_has_a_few_places_together(tmp_path, trusted):
    world = World(tmp_path)
    crowd = [identity(f"untrusted {number}") for number in range(2 * CHECKS_AT_ONCE)]
    fetching, most = {}, []

    async def stall(commit, sources):
        fetching[commit.digest] = None
        most.append(len(fetching))
        await asyncio.sleep(2 * EPOCH_SECONDS)
        del fetching[commit.digest]

    world.network.fetch_body = stall
    for number, one in enumerate(crowd):
        if trusted:
            known(world, one)
        world.commit(f"withheld {number}".encode(), signer=one, slot=int(trusted))
    world.run(world.flow)
    await world.rest(5 * EPOCH_SECONDS)
    assert max(most) == (CHECKS_AT_ONCE if trusted else UNTRUSTED_CHECKS)
    await world.stop()


async def test_a_trusted_peer_is_checked_before_untrusted_peers(tmp_path):
    world = World(tmp_path)
    worker = world.world.workers[0]
    known(world, worker)
    for number in range(40):
        junk = world.commit(f"junk {number}".encode(), signer=identity(f"untrusted {number}"))
        del world.network.bodies[junk.message.body]
    honest = world.commit(signer=worker, slot=1)
    order = []
    fetch = world.network.fetch_body

    async def noted(commit, sources):
        order.append(commit.digest)
        return await fetch(commit, sources)

    world.network.fetch_body = noted
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS + 1)
    assert order[0] == honest.digest
    assert [item.commit for item in world.verdicts] == [honest.digest]
    await world.stop()


async def test_untrusted_peers_that_withhold_bodies_wait_behind_those_that_have_not(tmp_path):
    """Each worker has the maximum of open commits, and a fetch holds its slot to the end."""
    world = World(tmp_path)
    withheld = {}
    for number in range(4):
        signer = identity(f"untrusted {number}")
        for slot in range(8):
            body = f"withheld {number} {slot}".encode()
            junk = world.commit(body, signer=signer, slot=slot)
            del world.network.bodies[junk.message.body]
            withheld[junk.digest] = None
    fetch = world.network.fetch_body

    async def slow(commit, sources):
        if commit.digest in withheld:
            await asyncio.sleep(EPOCH_SECONDS)
        return await fetch(commit, sources)

    world.network.fetch_body = slow
    world.run(world.flow)
    await world.rest(4 * EPOCH_SECONDS)
    honest = world.commit(signer=world.world.workers[0])
    await world.rest(3 * EPOCH_SECONDS)
    assert [item.commit for item in world.verdicts] == [honest.digest]
    assert len(world.flow._withheld) == 4
    await world.stop()


async def test_an_untrusted_peer_is_checked_and_has_reputation_then(tmp_path):
    world = World(tmp_path)
    worker = world.world.workers[0]
    first = world.commit(signer=worker)
    world.run(world.flow)
    await world.rest(EPOCH_SECONDS + 2)
    assert [item.commit for item in world.verdicts] == [first.digest]
    world.verdict(first)
    await world.rest(2 * EPOCH_SECONDS)
    assert has_reputation(worker.peer_id, world.manifest, world.replica.ledger)
    await world.stop()
