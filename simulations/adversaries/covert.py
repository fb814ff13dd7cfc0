"""Peers that do all at once: after they have earned a good name, or before anybody has one."""

from functools import reduce

from protocol.core.rng import Rng
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


def covert_flash(parts: Parts, rng: Rng) -> Parts:
    """Do several things at the moment that the scenario names, and none before."""
    return reduce(lambda done, behaviour: behaviour(done, rng), AT_ONCE, parts)


def cold_boot(parts: Parts, rng: Rng) -> Parts:
    """Do the same, and tell who asks what there is to know that there is nothing."""
    return covert_flash(false_sync(parts, rng), rng)
