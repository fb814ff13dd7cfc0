"""Dishonest nodes of simulations: the real daemon with one port replaced, role code untouched.

Each breaks one rule and is honest otherwise, so that each measures one defence.
``simulations.scenario.plans`` lists the roles of each.
"""

from functools import reduce

from protocol.core.rng import Rng
from simulations.adversaries import (
    backdating,
    batches,
    colluding,
    council,
    flooding,
    grinding,
    joining,
    keys,
    lazy,
    leaders,
    long_range,
    modelled,
    records,
    relays,
    steps,
    streams,
    trainers,
    unverifiable,
    validators,
)
from simulations.adversaries.rpcs import RPC_FLOODS
from simulations.adversaries.workers import WORKER_BEHAVIOURS
from simulations.ports.parts import Behaviour, Parts

__all__ = ["BEHAVIOURS", "covert_flash"]

AT_ONCE: tuple[Behaviour, ...] = (
    streams.slow_streams,
    records.record_spam,
    RPC_FLOODS["graft-flood"],
    RPC_FLOODS["ihave-flood"],
    RPC_FLOODS["iwant-flood"],
    RPC_FLOODS["slow-rpc"],
)
"""Without certain protocol violations, which would soon end the other attacks."""


def covert_flash(parts: Parts, rng: Rng) -> Parts:
    """Run several attacks from the scenario's start time on, and none before."""
    return reduce(lambda done, behaviour: behaviour(done, rng), AT_ONCE, parts)


def cold_boot(parts: Parts, rng: Rng) -> Parts:
    """Do the same, and answer synchronisation requests with nothing."""
    return covert_flash(joining.false_sync(parts, rng), rng)


BEHAVIOURS: dict[str, Behaviour] = {
    **{name: modelled.modelled(behaviour) for name, behaviour in WORKER_BEHAVIOURS.items()},
    "accept-everything": validators.accept_everything,
    "reject-everything": validators.reject_everything,
    "silent": validators.silent,
    "copied-verdicts": lazy.copied_verdicts,
    "skipped-replay": lazy.skipped_replay,
    "colluding-acceptance": colluding.colluding_acceptance,
    "colluding-rejection": colluding.colluding_rejection,
    "two-verdicts": validators.two_verdicts,
    "two-certificates": validators.two_certificates,
    "two-votes": council.two_votes,
    "withheld-reveals": council.withheld_reveals,
    "wrong-leads": council.wrong_leads,
    "invented-batch": trainers.invented_batch,
    "stale-batch": trainers.stale_batch,
    "empty-batch": leaders.empty_batch,
    "hidden-worker": batches.hidden_worker,
    "omitted-worker": batches.omitted_worker,
    "rolled-back": trainers.rolled_back,
    "term-jump": trainers.term_jump,
    "poisoned-state": trainers.poisoned_state,
    "poisoned-step": steps.poisoned_step,
    "lying-shadow": steps.lying_shadow,
    "excessive-difference": steps.excessive_difference,
    "two-versions": leaders.two_versions,
    "former-leader": leaders.former_leader,
    "skipped-slots": modelled.modelled(modelled.skipped_slots),
    "withheld-body": modelled.withheld_body,
    "poisoned-weights": trainers.poisoned_weights,
    "bad-bytes": relays.bad_bytes,
    "stall": relays.stall,
    "weights-as-bodies": unverifiable.weights_as_bodies,
    "chosen-problems": grinding.chosen_problems,
    "backdated-commits": backdating.backdated_commits,
    "junk-commits": unverifiable.junk_commits,
    "flood": flooding.flood,
    **RPC_FLOODS,
    "slow-streams": streams.slow_streams,
    "stream-flood": streams.stream_flood,
    "record-spam": records.record_spam,
    "conflicting-records": records.conflicting_records,
    "capacity-liars": records.capacity_liar,
    "sybil-flood": keys.sybil_flood,
    "address-reflection": keys.address_reflection,
    "false-sync": joining.false_sync,
    "eclipse": joining.eclipse,
    "long-range": long_range.long_range,
    "covert-flash": covert_flash,
    "cold-boot": cold_boot,
}
