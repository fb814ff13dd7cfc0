"""Peers that do several dishonest things at once."""

from functools import reduce

from protocol.rng import Rng
from simulations.adversaries.newcomers import false_sync
from simulations.adversaries.records import record_spam
from simulations.adversaries.rpcs import RPC_FLOODS
from simulations.adversaries.streams import slow_streams
from simulations.ports.parts import Behaviour, Parts

AT_ONCE: tuple[Behaviour, ...] = (
    slow_streams,
    record_spam,
    RPC_FLOODS["graft-flood"],
    RPC_FLOODS["ihave-flood"],
    RPC_FLOODS["iwant-flood"],
    RPC_FLOODS["slow-rpc"],
)
"""Nothing that breaks the protocol for certain: that would soon end the rest."""

AGAINST_NEWCOMERS: tuple[Behaviour, ...] = (slow_streams, false_sync)


def covert_flash(parts: Parts, rng: Rng) -> Parts:
    """Do several things at the moment that the scenario names, and none before."""
    return reduce(lambda done, behaviour: behaviour(done, rng), AT_ONCE, parts)


def sybil_flood(parts: Parts, rng: Rng) -> Parts:
    """Be many, take the places of streams, and tell newcomers next to nothing."""
    return reduce(lambda done, behaviour: behaviour(done, rng), AGAINST_NEWCOMERS, parts)
