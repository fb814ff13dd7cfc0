"""Rounds of several trainers: plans, results, and the versions that contain them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import digest
from protocol.core.faults import FaultCode
from protocol.core.types import Topic, ValidationResult
from protocol.ledger.chain import TERM_MAX
from protocol.messages import (
    BATCH_MAX,
    ENVELOPE_BYTES_MAX,
    OMITTED_MAX,
    ROUND_TRAINERS_MAX,
    CheckpointManifest,
    Encoding,
    RoundPlan,
    RoundResult,
    TrainingRound,
)
from protocol.messages.rounds import ROUND_RESULT_BYTES_MAX
from protocol.messages.schemas import ENCODINGS_MAX
from protocol.replica.rounds import PLANS_MAX, VERSIONS_KEPT
from tests.worlds.leads import show_lead
from tests.worlds.messages import World, contribution_of, round_of, run_manifest

TRAINERS, MOST, INNER, STEP, REFILL = 5, 3, 2, 2, 1
"""Keys of the genesis, most trainers of a round, their steps, and rollouts of a step."""

GRPO = {
    "rollouts_per_step": STEP,
    "refill_max": REFILL,
    "steps": 100,
    "outer": {"trainers": MOST, "inner_steps": INNER},
}
WORLD = World(run_manifest(trainers=TRAINERS, grpo=GRPO))
PLAIN = World(run_manifest(trainers=TRAINERS, grpo={"steps": 100}))
GENESIS = WORLD.genesis()
NOW = WORLD.at(3)
ACCEPT, IGNORE, REJECT = (
    ValidationResult.ACCEPT,
    ValidationResult.IGNORE,
    ValidationResult.REJECT,
)


def rollouts(count):
    return tuple(digest(b"rollout %d" % number) for number in range(count))


def plan_of(trainers=(0, 1, 2), parent=GENESIS, signer=None, world=WORLD, **changes):
    fields = {
        "batch": rollouts(len(trainers) * INNER * STEP),
        "page": digest(b"page"),
        "omitted": (digest(b"omitted"),),
        "planned_at": round(NOW * 1000),
    }
    return world.round_plan(parent, trainers, signer, **fields | changes)


def result_of(plan, trainer, name="", world=WORLD, **changes):
    fields = {"difference": digest(b"difference %d %s" % (trainer, name.encode()))}
    return world.round_result(plan, trainer, **fields | changes)


def version_of(plan, results, parent=GENESIS, trainer=0, **changes):
    planned = plan.message.model_dump(exclude={"parent", "trainers", "planned_at"})
    fields = planned | {"round": round_of(plan, results)}
    return WORLD.checkpoint(parent, trainer, **fields | changes)


PLAN = plan_of()
RESULTS = {place: result_of(PLAN, place) for place in range(3)}


def new_replica(world=WORLD):
    return world.replica(pages_to=0, roster_at=None)


def take(replica, signed, now=NOW):
    return replica.receive(signed.envelope, now, topic=Topic.CHECKPOINTS)


def outcome(received):
    return received.result, None if received.fault is None else received.fault.code


def holding(*messages, world=WORLD):
    replica = new_replica(world)
    for one in messages:
        assert take(replica, one).result is ACCEPT
    return replica


def chain(count, parent=GENESIS):
    """Return versions of rounds of trainer 0 alone, which learned from nothing."""
    found = []
    for _ in range(count):
        plan = plan_of((0,), parent, batch=())
        found.append(version_of(plan, {0: result_of(plan, 0)}, parent))
        parent = found[-1]
    return found


# Plans


def test_a_plan_of_the_leader_is_accepted_once():
    replica = new_replica()
    assert take(replica, PLAN).result is ACCEPT
    assert outcome(take(replica, PLAN)) == (IGNORE, None)
    assert replica.rounds.plan(GENESIS.digest) == PLAN
    assert replica.rounds.results(PLAN.digest) == {}
    assert replica.rounds.all() == [PLAN]


def refused_plans():
    worker = WORLD.workers[0]
    yield "a worker", plan_of(signer=worker), FaultCode.NOT_A_TRAINER
    yield "another leader", plan_of((1, 0), term=0), FaultCode.OTHER_TERM
    beyond = next(term for term in itertools.count(TERM_MAX + 1) if term % TRAINERS == 0)
    yield "a term out of bounds", plan_of(term=beyond), FaultCode.OTHER_TERM
    for name, trainers in {
        "a trainer too many": (0, 1, 2, 3),
        "no trainer of the genesis": (0, TRAINERS),
        "a later leader": (1, 0, 2),
        "no leader": (1, 2),
    }.items():
        plan = plan_of(trainers, signer=WORLD.trainers[0], term=0)
        yield name, plan, FaultCode.BAD_ROUND
    for count in range(1, MOST + 1):
        steps = count * INNER
        for size in (0, steps * STEP - 1, steps * (STEP + REFILL) + 1):
            plan = plan_of(tuple(range(count)), batch=rollouts(size))
            yield f"{size} rollouts for {count}", plan, FaultCode.BAD_ROUND


@pytest.mark.parametrize(
    ("plan", "code"), [pytest.param(*values, id=name) for name, *values in refused_plans()]
)
def test_a_plan_against_the_rules_is_rejected(plan, code):
    replica = new_replica()
    assert outcome(take(replica, plan)) == (REJECT, code)
    assert replica.rounds.all() == []


@pytest.mark.parametrize("count", range(1, MOST + 1))
def test_the_rollouts_of_a_plan_are_those_of_all_steps_of_its_trainers(count):
    for size in (count * INNER * STEP, count * INNER * (STEP + REFILL)):
        assert holding(plan_of(tuple(range(count)), batch=rollouts(size)))


def test_any_trainers_of_the_genesis_share_a_round():
    assert holding(plan_of((0, 4, 2)))
    assert holding(plan_of((3, 0), term=3 + TRAINERS))


def test_a_key_that_the_genesis_names_twice_has_one_part_of_a_round():
    first, other = (one.peer_id for one in WORLD.trainers[:2])
    genesis = WORLD.manifest.genesis.model_copy(update={"trainers": (first, other, first)})
    world = World(WORLD.manifest.model_copy(update={"genesis": genesis}))
    replica, parent = new_replica(world), world.genesis()
    assert take(replica, plan_of((0, 1), parent, world=world)).result is ACCEPT
    twice = plan_of((0, 2), parent, world=world)
    assert outcome(take(replica, twice)) == (REJECT, FaultCode.BAD_ROUND)


def test_a_run_without_outer_steps_has_no_rounds():
    replica = new_replica(PLAIN)
    plan = plan_of(parent=PLAIN.genesis(), world=PLAIN)
    assert outcome(take(replica, plan)) == (REJECT, FaultCode.BAD_ROUND)
    result = result_of(plan, 0, world=PLAIN)
    assert outcome(take(replica, result)) == (REJECT, FaultCode.BAD_ROUND)


def test_a_plan_is_dated_at_most_seconds_ahead():
    replica = new_replica()
    early = plan_of(planned_at=round((NOW + 3.1) * 1000))
    assert outcome(take(replica, early)) == (IGNORE, FaultCode.CLOCK_SKEW)
    assert take(replica, early, NOW + 0.2).result is ACCEPT


def test_the_newest_plan_of_a_version_counts():
    older, newer = plan_of((0, 1), planned_at=1), plan_of((0, 2), planned_at=2)
    for order in itertools.permutations((older, newer)):
        replica = new_replica()
        for one in order:
            take(replica, one)
        assert replica.rounds.all() == [newer]
    replica = holding(older, result_of(older, 1), newer)
    assert replica.rounds.results(older.digest) == {}
    assert outcome(take(replica, older)) == outcome(take(replica, result_of(older, 1)))
    assert outcome(take(replica, older)) == (IGNORE, None)


def test_of_two_plans_with_one_date_all_nodes_keep_the_same():
    pair = [plan_of(page=digest(b"page %d" % number)) for number in range(2)]
    first, second = holding(pair[0]), holding(pair[1])
    take(first, pair[1])
    take(second, pair[0])
    assert first.rounds.all() == second.rounds.all()


def test_the_plan_of_a_version_is_that_of_the_trainer_that_leads():
    former, later = plan_of(), plan_of((1, 0))
    replica = holding(former, later)
    assert replica.rounds.plan(GENESIS.digest) == former
    show_lead(WORLD, replica, 1, GENESIS)
    assert replica.rounds.plan(GENESIS.digest) == later
    assert replica.rounds.plan(digest(b"other")) is None


# Results


def test_results_are_in_the_order_of_the_plan():
    plan = plan_of((0, 3, 1))
    results = [result_of(plan, place) for place in (0, 3, 1)]
    for order in itertools.permutations(results):
        replica = holding(plan, *order)
        found = replica.rounds.results(plan.digest)
        assert list(found.items()) == [(one.signer, one) for one in results]
        assert replica.rounds.all()[0] == plan, "before its results"
        assert set(replica.rounds.all()) == {plan, *results}


def test_a_result_without_its_plan_is_ignored_and_comes_again():
    replica = new_replica()
    assert outcome(take(replica, RESULTS[1])) == (IGNORE, None)
    take(replica, PLAN)
    assert take(replica, RESULTS[1]).result is ACCEPT


def test_the_first_result_of_a_trainer_counts():
    replica = holding(PLAN, RESULTS[1])
    for other in (RESULTS[1], result_of(PLAN, 1, "other")):
        assert outcome(take(replica, other)) == (IGNORE, None)
    assert replica.rounds.results(PLAN.digest) == {RESULTS[1].signer: RESULTS[1]}


def test_only_the_trainers_of_a_plan_have_results():
    replica = holding(PLAN)
    assert outcome(take(replica, result_of(PLAN, 3))) == (REJECT, FaultCode.BAD_ROUND)
    worker = WORLD.sealed(RESULTS[0].message, WORLD.workers[0])
    assert outcome(take(replica, worker)) == (REJECT, FaultCode.NOT_A_TRAINER)
    assert replica.rounds.results(PLAN.digest) == {}


# Bounds


def test_a_leader_that_plans_much_displaces_only_its_own_plans():
    replica = holding(PLAN, RESULTS[1])
    flood = [
        plan_of((1, 0, 2), term=1 + TRAINERS * number, planned_at=number) for number in range(20)
    ]
    for one in flood:
        assert take(replica, one).result is ACCEPT
        for place in range(3):
            take(replica, result_of(one, place))
    sizes = {}
    for table in replica.rounds.tables:
        sizes[table.name] = max(sizes.get(table.name, 0), len(table))
        assert len(table) <= table.limit
    assert sizes == {"round_plans": PLANS_MAX, "round_results": 3 * PLANS_MAX}
    assert replica.rounds.plan(GENESIS.digest) == PLAN
    assert replica.rounds.results(PLAN.digest) == {RESULTS[1].signer: RESULTS[1]}
    assert set(flood[-PLANS_MAX:]) < set(replica.rounds.all())


def test_plans_from_unknown_versions_are_kept_and_old_ones_are_not():
    replica, (first, second, third) = new_replica(), chain(3)
    plans = {one.digest: plan_of((0,), one) for one in (GENESIS, first, second, third)}
    for one in plans.values():
        assert take(replica, one).result is ACCEPT
    for one in (first, second):
        assert take(replica, one).result is ACCEPT
    show_lead(WORLD, replica, 0, second)
    replica.advance(NOW)
    kept = [GENESIS, first, second][-VERSIONS_KEPT:]
    assert replica.rounds.all() == [plans[one.digest] for one in (*kept, third)]
    assert outcome(take(replica, plans[GENESIS.digest])) == (IGNORE, None)


def test_plans_from_all_versions_after_the_final_one_are_kept():
    replica, versions = new_replica(), chain(3)
    for one in versions:
        take(replica, one)
    show_lead(WORLD, replica, 0, versions[0])
    replica.advance(NOW)
    assert outcome(take(replica, plan_of((1, 0), GENESIS))) == (IGNORE, None)
    assert take(replica, plan_of((1, 0), versions[0])).result is ACCEPT
    replica.advance(NOW)
    assert len(replica.rounds.all()) == 1


PARENTS = (GENESIS, *chain(1))
PLANS = [
    plan_of(trainers, parent, planned_at=at)
    for trainers, at in (((0, 1, 2), 5), ((0, 2), 5), ((0, 4), 7), ((1, 0), 6))
    for parent in PARENTS
]
MESSAGES = [
    *PLANS,
    *(result_of(one, place) for one in PLANS for place in one.message.trainers),
]


@given(st.permutations(MESSAGES), st.permutations(MESSAGES))
def test_the_order_of_arrival_changes_nothing(first, second):
    """A result before its plan comes again by synchronisation."""
    replica, expected = new_replica(), holding_all(MESSAGES)
    for one in (*first, *second):
        take(replica, one)
    assert set(replica.rounds.all()) == set(expected.rounds.all())
    for parent in PARENTS:
        plan = replica.rounds.plan(parent.digest)
        assert plan == expected.rounds.plan(parent.digest)
        assert plan.message.planned_at == 7
        found, others = (one.rounds.results(plan.digest) for one in (replica, expected))
        assert list(found.items()) == list(others.items())


def holding_all(messages):
    replica = new_replica()
    for one in messages:
        take(replica, one)
    return replica


# Versions


def test_a_version_with_the_results_of_its_plan_is_accepted():
    plan = plan_of(batch=())
    for places in ((0, 1, 2), (0, 2), (1,)):
        made = version_of(plan, {place: result_of(plan, place) for place in places})
        replica = new_replica()
        assert take(replica, made).result is ACCEPT, "without having the plan"
        assert replica.ledger.chain.head == made


def test_a_version_of_rollouts_that_are_not_here_waits():
    made = version_of(PLAN, RESULTS)
    assert outcome(take(new_replica(), made)) == (IGNORE, None)


def forged_versions():
    results = dict(RESULTS)
    yield "no round", version_of(PLAN, results, round=None)
    other = plan_of(planned_at=PLAN.message.planned_at + 1)
    yield "another plan", version_of(other, results)
    for name in ("page", "omitted", "batch", "reloaded"):
        value = {"page": b"", "omitted": (), "batch": rollouts(13), "reloaded": True}[name]
        yield f"another {name}", version_of(PLAN, results, **{name: value})
    fewer = round_of(PLAN, results).model_copy(update={"trainers": (0, 1, 2, 3)})
    yield "more trainers", version_of(PLAN, results, round=fewer)
    swapped = results | {1: result_of(PLAN, 1, "other")}
    for name, value in {
        "difference": digest(b"x"),
        "index": digest(b"x"),
        "index_bytes": 1,
        "total_bytes": 1,
        "signature": bytes(64),
    }.items():
        made = round_of(PLAN, results)
        last = made.contributions[2].model_copy(update={name: value})
        changed = made.model_copy(update={"contributions": (*made.contributions[:2], last)})
        yield f"another {name}", version_of(PLAN, results, round=changed)
    yield "the result of another trainer", version_of(PLAN, results | {2: swapped[1]})
    for trainers in ((1, 0, 2), (1, 2), (0, TRAINERS), (0, 1, 2, 3)):
        plan = plan_of(trainers, signer=WORLD.trainers[0], term=0)
        known = {place: result_of(plan, place) for place in trainers if place < TRAINERS}
        yield f"trainers {trainers}", version_of(plan, known)


@pytest.mark.parametrize("made", [pytest.param(made, id=name) for name, made in forged_versions()])
def test_a_version_with_a_forged_round_is_rejected(made):
    replica = holding(PLAN, *RESULTS.values())
    assert outcome(take(replica, made)) == (REJECT, FaultCode.BAD_ROUND)
    assert replica.ledger.chain.head == GENESIS


def test_another_trainer_cannot_publish_the_results_of_a_leader():
    made = version_of(PLAN, RESULTS, trainer=1)
    assert outcome(take(new_replica(), made)) == (REJECT, FaultCode.OTHER_TERM)
    made = version_of(PLAN, RESULTS, trainer=1, term=1)
    assert outcome(take(new_replica(), made)) == (REJECT, FaultCode.BAD_ROUND)


def test_a_version_with_a_round_needs_a_parent():
    message = version_of(PLAN, RESULTS).message.model_copy(update={"parent": b""})
    made = WORLD.sealed(message, WORLD.trainers[0])
    assert outcome(take(new_replica(), made)) == (REJECT, FaultCode.BAD_ROUND)


def test_version_0_and_versions_of_other_runs_have_no_round():
    made = WORLD.genesis(round=round_of(PLAN, RESULTS))
    replica = WORLD.replica(pages_to=0, roster_at=None, genesis=False)
    assert outcome(take(replica, made)) == (REJECT, FaultCode.BAD_ROUND)
    assert take(replica, GENESIS).result is ACCEPT
    first = PLAIN.genesis()
    plan = plan_of((0,), first, world=PLAIN, batch=())
    made = round_of(plan, {0: result_of(plan, 0, world=PLAIN)})
    with_round = PLAIN.checkpoint(first, round=made, page=digest(b"page"))
    assert outcome(take(new_replica(PLAIN), with_round)) == (REJECT, FaultCode.BAD_ROUND)
    assert take(new_replica(PLAIN), PLAIN.checkpoint(first)).result is ACCEPT


def test_a_leader_makes_the_round_of_a_version():
    rounds = holding(PLAN, RESULTS[2], RESULTS[0]).rounds
    results = rounds.results(PLAN.digest)
    made = rounds.training_round(PLAN, results)
    assert made == round_of(PLAN, {0: RESULTS[0], 2: RESULTS[2]})
    assert rounds.training_round(PLAN, dict(reversed(results.items()))) == made
    with pytest.raises(ValueError, match="contributions"):
        rounds.training_round(PLAN, {})


def test_the_results_of_a_version_come_back_signed():
    rounds, made = new_replica().rounds, version_of(PLAN, {0: RESULTS[0], 2: RESULTS[2]})
    assert rounds.contribution(made, 0) == RESULTS[0]
    assert rounds.contribution(made, 2) == RESULTS[2]
    with pytest.raises(KeyError):
        rounds.contribution(made, 1)
    assert rounds.contributors(made.message) == [WORLD.trainers[one].peer_id for one in (0, 2)]
    assert rounds.contributors(GENESIS.message) == []
    with pytest.raises(KeyError):
        rounds.contribution(GENESIS, 0)


def test_plans_and_results_are_not_stored():
    replica = new_replica()
    for one in (PLAN, RESULTS[0]):
        assert not take(replica, one).lasting
        assert one.envelope not in replica.envelopes()


# Sizes


def test_the_largest_messages_fit_into_their_envelopes():
    most, hash_bytes = 2**53, digest(b"x")
    numbers = {"index_bytes": most, "total_bytes": most}
    result = RoundResult(plan=hash_bytes, difference=hash_bytes, index=hash_bytes, **numbers)
    signed = WORLD.sealed(result, WORLD.trainers[0])
    assert len(signed.envelope) <= ROUND_RESULT_BYTES_MAX
    plan = RoundPlan(
        parent=hash_bytes,
        term=most,
        batch=(hash_bytes,) * BATCH_MAX,
        page=hash_bytes,
        omitted=(hash_bytes,) * OMITTED_MAX,
        trainers=tuple(range(most - ROUND_TRAINERS_MAX, most)),
        planned_at=most,
    )
    assert len(WORLD.sealed(plan, WORLD.trainers[0]).envelope) <= ENVELOPE_BYTES_MAX
    encoding = Encoding(base_version=0, base=hash_bytes, index=hash_bytes, **numbers)
    version = CheckpointManifest(
        version=most,
        term=most,
        parent=hash_bytes,
        policy=hash_bytes,
        index=hash_bytes,
        encodings=(encoding,) * ENCODINGS_MAX,
        state=hash_bytes,
        state_index_bytes=most,
        state_bytes=most,
        batch=plan.batch,
        page=hash_bytes,
        omitted=plan.omitted,
        reloaded=True,
        moments=most - 1,
        round=TrainingRound(
            planned_at=most,
            trainers=plan.trainers,
            contributions=tuple(contribution_of(signed, place) for place in plan.trainers),
        ),
        reward_mean=-most,
        created_at=most,
        **numbers,
    )
    assert len(WORLD.sealed(version, WORLD.trainers[0]).envelope) <= ENVELOPE_BYTES_MAX
