"""Dishonest behaviours: each deviates, and the unchanged daemons around it tolerate it."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from protocol.consensus.committee import draw
from protocol.consensus.verdict_pool import VerdictTable
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest
from protocol.ledger.ledger import Ledger
from protocol.replica.batch_rule import BatchRule
from protocol.replica.shadows import StepReports
from protocol.rollout.assignment import assign
from protocol.rollout.audit import HISTORY_ROLLOUTS_MIN
from protocol.rollout.body import RolloutSequence, encode_body, reward_of
from roles.environments.threaded import InBackground
from roles.ports.storage import Owner, Purpose
from roles.runtime.scoring import Task
from simulations.adversaries import BEHAVIOURS, batches, leaders, trainers, validators
from simulations.adversaries import council as councils
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.relays import WrongBytes
from simulations.adversaries.validators import CredulousEnvironment
from simulations.ports.storage import Disk, Session
from simulations.ports.sums import SumTask
from simulations.runtime.content import Extent, digest_of, joined
from simulations.runtime.loop import SimBackground
from simulations.scenario import plans
from simulations.study.study import RunPlan, run_plan
from tests.worlds.messages import World as Worlds
from tests.worlds.messages import run_manifest

SWARM = """
name = "dishonest"
description = "Few nodes, quick rollouts, committees that two liars of six cannot sway."
minutes = {minutes}
[nodes]
relay = 2
trainer = 1
validator = 6
inference = {workers}
start_seconds = 4
[[compute]]
name = "any"
share = 1
roles = ["inference", "validator", "trainer"]
generate_tokens_per_second = 40
check_tokens_per_second = 400
train_tokens_per_second = 200
[protocol.grpo]
rollouts_per_step = 2
[protocol.committee]
size = 3
escalated_size = 6
"""
HONEST_WORKERS = 2

pytestmark = pytest.mark.slow  # most of them

LIES = {
    "stale-weights": "computation",
    "other-weights": "computation",
    "edited-tokens": "sampling",
    "forged-rewards": "reward",
    "forged-proofs": "computation",
}


class Played:
    """A finished run, and its world just before the end."""

    def __init__(self, outcome, world, ledger, looked):
        self.outcome = outcome
        self.world = world
        self.ledger = ledger
        self.looked = looked
        names = {machine.signer.peer_id: name for name, machine in world.machines.items()}
        self.workers = {names[peer]: counts for peer, counts in ledger.workers.counts.items()}


def nothing(_world):
    """Neither check nor change the world."""


@pytest.fixture
def play(tmp_path):
    """Run a small swarm with some dishonest nodes, and inspect it before it ends."""

    def play(
        dishonest, look=nothing, begin=nothing, *, minutes=1.2, workers=HONEST_WORKERS, seed=1
    ):
        seen = {}

        async def corrupt(world):
            for name, behaviour in dishonest.items():
                world.machines[name].behaviour = behaviour
            begin(world)
            await asyncio.sleep(world.scenario.seconds - 0.1)
            ledger = world.machines["trainer-0"].daemon.replica.ledger
            seen.update(world=world, ledger=ledger, looked=look(world))

        file = tmp_path / "scenario.toml"
        lying = sum(name.startswith("worker") for name in dishonest)
        file.write_text(SWARM.format(minutes=minutes, workers=workers + lying))
        plan = RunPlan(str(file), seed=seed)
        outcome = run_plan(plan, clock=time.perf_counter, actors=[corrupt])
        assert outcome.violation is None
        return Played(outcome, **seen)

    return play


def honest_work_is_not_hurt(played, *liars):
    """Check that honest workers lost no rollout and that a version learned from them."""
    honest = {name: count for name, count in played.workers.items() if name not in liars}
    assert len(honest) >= HONEST_WORKERS
    for name, counts in honest.items():
        assert counts.certified > 1, name
        assert counts.rejected == counts.expired == 0, name
    assert played.outcome.result.certified_false == 0
    assert played.outcome.result.versions_published > 1


# The registry


def test_every_behaviour_that_a_scenario_may_name_is_carried_out():
    assert list(BEHAVIOURS) == list(plans.BEHAVIOURS)


# Workers


def test_each_lie_of_a_worker_is_found_out_for_what_it_is(play):
    liars = {f"worker-{number}": lie for number, lie in enumerate(LIES)}
    played = play(liars, minutes=1.3)
    for name, lie in liars.items():
        counts = played.workers[name]
        assert counts.certified == 0, lie
        if LIES[lie] == "sampling":  # one rollout may be an accident, many are an offence
            assert counts.reasons["sampling"] >= HISTORY_ROLLOUTS_MIN - 1
            assert set(counts.reasons) == {"sampling", "history"}
        elif LIES[lie] == "reward":  # as may a score that differs
            assert counts.reasons["reward"] >= HISTORY_ROLLOUTS_MIN
            assert counts.reasons["reward-history"] in (1, 2)
            assert set(counts.reasons) == {"reward", "reward-history"}
        else:
            assert counts.rejected in (1, 2), "two were under way when the first was found out"
            assert dict(counts.reasons) == {LIES[lie]: counts.rejected}, lie
        assert played.ledger.workers.is_slashed(played.world.machines[name].signer.peer_id)
    honest_work_is_not_hurt(played, *liars)


def test_a_worker_that_withholds_its_bodies_gets_nothing_for_them(play):
    played = play({"worker-0": "withheld-body"})
    counts = played.workers["worker-0"]
    assert counts.committed == 2  # then it waits, like every worker
    assert counts.certified == counts.rejected == 0
    honest_work_is_not_hurt(played, "worker-0")


def selected_commits(world):
    """Return the commits of relay 1 at the trainer, and those with a page that fits them."""
    replica = world.machines["trainer-0"].daemon.replica
    me = world.machines["relay-1"].signer.peer_id
    liars = [one.signer.peer_id for one in world.machines.values() if one.behaviour]
    entries = replica.ledger.commits.entries.values()
    commits = [one.commit for one in entries if one.commit.signer == me]
    fitting = [
        commit
        for commit in commits
        for node in replica.pages.notarised()
        if node.draws
        and node.epoch == commit.message.epoch + 1
        and set(draw(replica.manifest, node, commit).first) <= set(liars)
    ]
    return len(commits), len(fitting)


BACKDATING = {
    "relay-1": "backdated-commits",
    **{f"validator-{number}": "backdated-commits" for number in range(3)},
}


def test_a_commit_that_is_selected_for_the_committee_of_a_public_page_gains_no_certificate(play):
    played = play(BACKDATING, selected_commits)
    commits, fitting = played.looked
    assert commits == fitting > 0, "each would have a committee of accomplices"
    assert played.workers["relay-1"].certified == 0
    honest_work_is_not_hurt(played, "relay-1")


def test_without_the_list_the_committee_of_a_public_page_would_count(play, monkeypatch):
    def rank_of_any_page(table, certificate, verdicts, commit, page):
        return rank(
            table, certificate, verdicts, commit, replace(page, drawn={commit.digest: None})
        )

    rank = VerdictTable.rank
    monkeypatch.setattr(VerdictTable, "rank", rank_of_any_page)
    with pytest.raises(AssertionError, match="certified-only"):
        play(BACKDATING, selected_commits)


# Validators


def verdicts_of_liars(world):
    """Return (commit's author, validator, accept) from honest nodes, and equivocators."""
    heard, twofaced = {}, {}
    for machine in world.machines.values():
        if machine.behaviour:
            continue
        for commit, entry in machine.daemon.replica.ledger.commits.entries.items():
            for tally in machine.daemon.replica.verdicts.pools.get(commit, {}).values():
                twofaced |= dict.fromkeys(tally.equivocations)
                for peer, verdict in tally.verdicts.items():
                    heard[entry.commit.signer, peer, verdict.message.accept] = None
    peers = {machine.signer.peer_id: machine for machine in world.machines.values()}
    lies = [
        (peers[author].behaviour, accept) for author, peer, accept in heard if peers[peer].behaviour
    ]
    return lies, [peers[peer].behaviour for peer in twofaced]


EXPECTED_VERDICTS = {
    "accept-everything": {("", True), ("forged-rewards", True), ("other-weights", True)},
    "reject-everything": {("", False), ("forged-rewards", False), ("other-weights", False)},
    "silent": set(),
    "two-verdicts": {
        (author, accept)
        for author in ("", "forged-rewards", "other-weights")
        for accept in (True, False)
    },
}


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param("accept-everything", marks=pytest.mark.long),  # below, it loses its seat
        "reject-everything",
        pytest.param("silent", marks=pytest.mark.long),  # as a validator that is gone
        pytest.param("two-verdicts", marks=pytest.mark.long),  # evidence names it
    ],
)
def test_a_third_of_the_validators_cannot_sway_the_others(play, behaviour):
    liars = {"worker-0": "forged-rewards", "worker-1": "other-weights"}
    dishonest = {"validator-0": behaviour, "validator-1": behaviour, **liars}
    played = play(dishonest, verdicts_of_liars, minutes=1.6)  # a council that ends draws nothing
    verdicts, equivocators = played.looked
    assert set(verdicts) <= EXPECTED_VERDICTS[behaviour]
    honest = {(author, accept) for author, accept in EXPECTED_VERDICTS[behaviour] if not author}
    assert honest <= set(verdicts)
    assert set(equivocators) == ({behaviour} if behaviour == "two-verdicts" else set())
    # At most those in flight when the first offence was found: for other weights at once, for
    # differing rewards in the fifth rollout. A page, and two silent validators, take time.
    assert played.workers["worker-1"].rejected in (1, 2)
    assert 0 < played.workers["worker-0"].rejected <= 8
    honest_work_is_not_hurt(played, *liars)


def named(world):
    """Return the behaviours that an honest node has found, by dissents and by evidence."""
    replica = world.machines["trainer-0"].daemon.replica
    behaviours = {one.signer.peer_id: one.behaviour for one in world.machines.values()}
    by_dissents = [behaviours[peer] for peer in replica.dissents.named]
    return by_dissents, [behaviours[peer] for peer in replica.intake.evidence.evidence]


@pytest.mark.parametrize(
    ("behaviour", "found"),
    [
        ("accept-everything", (["accept-everything"], [])),
        ("skipped-replay", (["skipped-replay"], [])),
        ("copied-verdicts", ([], ["copied-verdicts"])),
    ],
)
def test_a_validator_that_skips_work_loses_its_seat(play, behaviour, found):
    played = play(
        {"validator-0": behaviour}, lambda world: (named(world), council(world)), minutes=1.6
    )
    assert played.looked == (found, [f"validator-{number}" for number in range(1, 6)])
    honest_work_is_not_hurt(played)


def council(world):
    """Return the names of the council's members, as an honest node knows them."""
    names = {machine.signer.peer_id: name for name, machine in world.machines.items()}
    members = world.machines["trainer-0"].daemon.replica.pages.council.members
    return sorted(names[peer] for peer in members)


def test_a_validator_that_votes_twice_in_an_epoch_loses_its_seat(play):
    played = play({"validator-0": "two-votes"}, council)
    assert played.looked == [f"validator-{number}" for number in range(1, 6)]
    honest_work_is_not_hurt(played)


def reveals_of_withholder(world):
    """Return (proposed by itself, revealed) of the pages for which validator 0 was drawn."""
    me = world.machines["validator-0"].signer.peer_id
    pages = world.machines["trainer-0"].daemon.replica.pages
    found = []
    for (one,) in [chain for chain in pages.chains() if len(chain) == 1]:
        message = one.page.message
        drawn = pages.council.revealers(message.seed, message.epoch, pages.rules.revealers)
        found.append((one.page.signer == me, bool(message.reveals[drawn.index(me)])))
    return found


def test_withheld_reveals_hurt_no_honest_work(play):
    played = play({"validator-0": "withheld-reveals"}, reveals_of_withholder)
    assert (False, False) in played.looked
    assert (False, True) not in played.looked
    honest_work_is_not_hurt(played)


def leads(world):
    """Return the term at an honest node, and the notarised pages as epochs and authors."""
    replica = world.machines["trainer-0"].daemon.replica
    assert replica.ledger.chain.is_taken(replica.lead.head)
    assert replica.pages.root.epoch > 0
    pages = [node.page for node in replica.pages.notarised()]
    return replica.lead.term, {(page.message.epoch, page.signer) for page in pages}


def test_a_page_with_a_wrong_leader_or_version_is_not_notarised(play, monkeypatch):
    misled, honest_misled = {}, councils._misled

    def noted(page):
        wrong = honest_misled(page)
        misled[page.epoch] = (wrong.term, wrong.head) != (page.term, page.head)
        return wrong

    monkeypatch.setattr(councils, "_misled", noted)
    for seed in range(2, 9):  # in some runs it proposes no page, as in that of seed 1
        played = play({"validator-0": "wrong-leads"}, leads, seed=seed)
        if misled:
            break
    term, notarised = played.looked
    assert term == 0
    assert misled
    assert all(misled.values())
    author = played.world.machines["validator-0"].signer.peer_id
    assert not {(epoch, author) for epoch in misled} & notarised
    assert len(notarised) > len(misled)
    honest_work_is_not_hurt(played)


async def test_a_credulous_validator_comes_to_the_reward_that_is_claimed():
    targets = {"length_targets": (4, 8), "length_penalty": 0.125}
    world = Worlds(run_manifest(sampling=targets))
    manifest, worker = world.manifest, world.workers[0]
    checkpoint = Digest(world.genesis().digest)
    items = assign(manifest, worker.peer_id, 0)
    scores = (1.0, 0.0, 0.25, 0.75)
    claims = tuple(
        reward_of(manifest.sampling, score, 3, item.length_target)
        for score, item in zip(scores, items, strict=True)
    )
    body = encode_body([RolloutSequence((2, n, 1), (-0.5,) * 3, claims[n], ()) for n in range(4)])
    commit = world.commit(worker, body=digest_of(body), checkpoint=checkpoint)
    ledger = Ledger(manifest)
    assert ledger.offer_commit(commit, 0)
    parts = SimpleNamespace(disk=Disk(), replica=lambda: SimpleNamespace(ledger=ledger))
    plain = InBackground(SumTask(), SimBackground())
    task = Task(manifest, CredulousEnvironment(plain, manifest, parts))
    answers = [(2, n, 1) for n in range(len(items))]
    honest = await Task(manifest, plain).rewards(items, answers)
    assert await task.rewards(items, answers) == honest
    parts.disk.blobs[digest_of(body)] = body  # the body arrived
    got = await task.rewards(items, answers)
    assert tuple(got) == claims != tuple(honest)


# Relays


def versions_held(world):
    honest = [machine.daemon for machine in world.machines.values() if not machine.behaviour]
    return [daemon.snapshot().policy_version for daemon in honest]


@pytest.mark.parametrize("behaviour", ["bad-bytes", "stall"])
def test_nodes_get_their_weights_past_relays_that_serve_badly(play, behaviour):
    for seed in range(3, 8):
        played = play({"relay-0": behaviour}, versions_held, seed=seed)
        assert min(played.looked) >= 2
        honest_work_is_not_hurt(played)
        good, bad = (
            played.world.machines[name].host.meters["blobs"].sent for name in ("relay-1", "relay-0")
        )
        if good > 2_000_000:  # in one run of four the forest gives this relay no children
            break
    assert good > 2_000_000
    assert bad > 2_000_000 if behaviour == "bad-bytes" else 100 < bad < 100_000


OWNER = Owner(Purpose.WEIGHTS, digest_of(b"a version"))


async def served(blobs, digest):
    return joined([piece async for piece in blobs.stream(digest, 10, 50)])


async def test_bad_bytes_have_the_right_length_and_another_digest():
    blobs, content = WrongBytes(Disk(), Session()), Extent.of(b"seed", 0, 1000)
    digest = await blobs.put(content, OWNER)
    assert len(await served(blobs, digest)) == 50
    assert digest_of(await served(blobs, digest)) != digest_of(content[10:60])
    assert await blobs.get(digest) == content  # its own reads are unspoiled


async def test_instead_of_an_index_that_of_another_version_is_served():
    blobs, old, new = WrongBytes(Disk(), Session()), bytes(100), bytes(range(100))
    digest = await blobs.put(old, OWNER)
    assert await served(blobs, digest) == old[10:60]
    for other in (b"shorter", Extent.of(b"seed", 0, 100)):
        await blobs.put(other, OWNER)
    new_digest = await blobs.put(new, OWNER)
    assert await served(blobs, digest) == new[10:60]
    assert await served(blobs, new_digest) == old[10:60]


# Flooding


def burdens(world):
    """Return the load of each honest node, and its number of banned peers."""
    honest = [machine.daemon for machine in world.machines.values() if not machine.behaviour]
    return [(daemon._gossip.counters.faults, daemon.status().peers_banned) for daemon in honest]


def test_peers_that_flood_are_cut_off_by_everybody_and_nobody_else_is(play):
    def restart_later(world):
        world.loop.call_later(20, world.crash, "relay-0")
        world.loop.call_later(25, world.start, "relay-0")

    quiet = play({}, burdens, minutes=0.6, workers=3)
    assert quiet.looked == [(0, 0)] * len(quiet.looked)
    flooded = play({"worker-0": "flood", "relay-0": "flood"}, burdens, restart_later, workers=2)
    for faults, banned in flooded.looked:
        assert banned == 2
        assert faults < 100, "what was on its way when they were cut off"
    honest_work_is_not_hurt(flooded, "worker-0")


# All at once


@pytest.mark.long  # tests/simulations/test_determinism.py has some of them
def test_dishonest_nodes_do_the_same_with_the_same_seed(play):
    dishonest = {
        "worker-0": "stale-weights",
        "worker-1": "flood",
        "validator-0": "two-verdicts",
        "relay-0": "stall",
    }
    one, other = (play(dishonest, minutes=0.6) for _ in range(2))
    assert one.outcome.result.trace_digest == other.outcome.result.trace_digest


# Whole scenarios


@pytest.fixture
def published(monkeypatch):
    """Collect the extra gossip of dishonest nodes, by kind of node and of message."""
    said = Counter()
    honest_publish = GossipingTransport.publish

    async def publish(self, replica, topic, message):
        said[type(self).__name__, type(message).__name__] += 1
        return await honest_publish(self, replica, topic, message)

    monkeypatch.setattr(GossipingTransport, "publish", publish)
    return said


@pytest.fixture
def contradicted(monkeypatch):
    """Collect the certificates that a validator sends to some peers only, with another outcome."""
    certificates = set()
    honest_other = validators.ContradictingTransport.other

    def noted(self, own, replica):
        other = honest_other(self, own, replica)
        if other is not own:
            certificates.add(own.digest)
        return other

    monkeypatch.setattr(validators.ContradictingTransport, "other", noted)
    return certificates


def run_scenario(name, minutes):
    outcome = run_plan(RunPlan(name, seed=3, minutes=minutes), clock=time.perf_counter)
    assert outcome.violation is None, str(outcome.violation)
    assert outcome.result.versions_published > 1
    return outcome.result


@pytest.mark.long
def test_untrusted_peers_that_commit_to_the_weights_of_others_delete_nothing(published):
    run_scenario("byzantine-untrusted", 2)
    assert published["NamingTransport", "RolloutCommit"] > 10


@pytest.mark.long
def test_standby_trainers_turn_nobody_from_the_chain_of_the_leader(published):
    run_scenario("byzantine-trainers", 4)
    assert published["PublishingTransport", "CheckpointManifest"] > 4


@pytest.mark.long
def test_weights_that_no_training_makes_are_held_by_nobody_and_cost_the_lead(monkeypatch):
    made, honest = [], trainers.poisoned_seed

    def noted(seed):
        made.append(seed)
        return honest(seed)

    monkeypatch.setattr(trainers, "poisoned_seed", noted)
    result = run_scenario("trainer-poisons", 7)
    assert made, "the leader has poisoned versions"
    assert result.weights.versions > trainers.VERSIONS_BEFORE + 1, "an heir goes on"


@pytest.fixture
def reported(monkeypatch):
    """Return, by term and version, which trainers confirmed a version and which differed."""
    found, honest = {}, StepReports.offer

    def noted(self, report, now=0.0):
        taken, chain = honest(self, report, now), self._chain
        version = chain.get(chain.place(report.message.manifest) or 0)
        if taken is True and version is not None and version.message.version:
            place = version.message.term, version.message.version
            is_equal = report.message.policy == version.message.policy
            found.setdefault(place, {})[report.signer] = is_equal
        return taken

    monkeypatch.setattr(StepReports, "offer", noted)
    return found


@pytest.mark.long
def test_steps_that_two_shadows_dispute_are_never_final_and_cost_the_lead(reported):
    result = run_scenario("trainer-shadowed", 11)
    first = trainers.VERSIONS_BEFORE + 1
    assert list(reported[0, first].values()) == [False, False]
    assert all(all(reported[0, number].values()) for number in range(1, first))
    later = {place: found for place, found in reported.items() if place[0] == 1}
    assert min(number for _, number in later) == first, "the next trainer makes it anew"
    assert all(all(found.values()) for found in later.values())
    assert result.versions_published > first + 3, "the run goes on"


@pytest.mark.long
def test_honest_shadows_confirm_every_version_and_a_lying_one_changes_nothing(reported):
    honest = run_scenario("trainers-shadow", 5)
    counts = Counter(tuple(sorted(found.values())) for found in reported.values())
    assert counts[True, True] >= honest.versions_published - 2
    assert not any(False in found for found in counts)
    reported.clear()
    lied = run_scenario("shadow-lies", 5)
    assert {term for term, _ in reported} == {0}, "the leader stays"
    assert sum(False in found.values() for found in reported.values()) > 2
    assert lied.versions_published > honest.versions_published - 3


@pytest.mark.long
def test_what_a_leader_publishes_after_its_term_is_not_taken(published):
    result = run_scenario("former-leader", 7)
    assert published["FormerLeaderTransport", "CheckpointManifest"] > 5
    assert result.rollouts.expired == 0


@pytest.mark.long
def test_the_term_of_a_leader_with_two_chains_ends_and_one_chain_goes_on(monkeypatch):
    other_versions, honest_other = set(), leaders.TwoVersionsTransport.other

    def noted(self, own, replica):
        other = honest_other(self, own, replica)
        if other is not own:
            other_versions.add(other.digest)
        return other

    monkeypatch.setattr(leaders.TwoVersionsTransport, "other", noted)
    result = run_scenario("trainer-equivocates", 10)
    assert len(other_versions) > 2
    assert result.versions_published > 6


@pytest.fixture
def judged(monkeypatch):
    """Versions that honest members judged, with the faults of their batches, by trainer."""
    found = {}
    honest = BatchRule.judged

    def noted(self, number):
        fault = honest(self, number)
        if isinstance(fault, Fault) and type(self) is BatchRule:
            found[number] = fault
        return fault

    monkeypatch.setattr(BatchRule, "judged", noted)
    return found


@pytest.fixture
def learned(monkeypatch):
    """Workers of the rollouts in the newest accepted version of each number and term."""
    found, honest = {}, Ledger.offer_checkpoint

    def noted(self, manifest, *arguments):
        taken = honest(self, manifest, *arguments)
        if taken is True:
            commits = [self.commits.known(Digest(one)) for one in manifest.message.batch]
            workers = Counter(one.commit.signer for one in commits)
            found[manifest.message.term, manifest.message.version] = workers
        return taken

    monkeypatch.setattr(Ledger, "offer_checkpoint", noted)
    return found


@pytest.mark.long
@pytest.mark.parametrize("how", ["hidden", "omitted"])
def test_a_leader_that_leaves_out_a_worker_is_followed_by_one_that_does_not(
    how, judged, learned, monkeypatch
):
    shunned, honest = [], batches.ChoosingRule.__init__

    def noted(self, replica, worker, *, names):
        shunned.append(worker)
        honest(self, replica, worker, names=names)

    monkeypatch.setattr(batches.ChoosingRule, "__init__", noted)
    run_scenario(f"trainer-{how}-worker", 8)
    (worker,) = shunned
    assert {one.code for one in judged.values()} == {FaultCode.BATCH_OMITTED}
    words = {"hidden": "it hides", "omitted": "it leaves out"}[how]
    assert all(words in one.detail and worker[-6:] in one.detail for one in judged.values())
    after = [workers for (term, _), workers in learned.items() if term == 1]
    assert after, "the next trainer leads"
    assert sum(workers[worker] for workers in after) > 2


@pytest.mark.long
def test_a_leader_without_batches_is_followed_by_another(judged, learned):
    run_scenario("trainer-empty-batch", 8)
    assert {one.code for one in judged.values()} == {FaultCode.BATCH_SIZE}
    assert [workers for (term, _), workers in learned.items() if term == 1]


def test_the_stale_batch_of_a_standby_is_certified_and_refused_for_its_age_alone():
    world = Worlds(run_manifest(trainers=2))
    replica, commits = world.replica(), world.chain(world.workers[0], 2)
    head = world.genesis()
    for commit in commits:
        replica.receive(commit.envelope, world.at(0))
        replica.receive(world.certificate(commit).envelope, world.at(1))
    for number in range(world.manifest.grpo.async_level + 1):
        used = (commits[0].digest,) if number == 0 else ()
        successor = world.checkpoint(head, 1, term=1, batch=used)
        assert trainers._stale(replica, head, successor.message) is None, "none is too old yet"
        head = world.checkpoint(head, batch=used)
        replica.receive(head.envelope, world.at(1))
    successor = world.checkpoint(head, 1, term=1)
    forged = trainers._stale(replica, head, successor.message)
    assert forged.batch == (commits[1].digest,), "one that no version has learned from"
    received = replica.receive(world.sealed(forged, world.trainers[1]).envelope, world.at(1))
    assert received.fault.code is FaultCode.STALE_BATCH
    assert replica.receive(successor.envelope, world.at(1)).fault is None


@pytest.mark.long
def test_what_was_rejected_stays_so_when_half_of_the_swarm_hears_that_it_is_certified(contradicted):
    # A version that learned from a rollout that is rejected meanwhile costs its trainer a minute.
    result = run_scenario("byzantine-committees", 3)
    assert len(contradicted) > 1
    assert result.contradictory_certificates > 0
    assert result.certified_false == 0
