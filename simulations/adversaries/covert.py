"""Peers that run several attacks at once, after gaining reputation or before the swarm forms."""

from functools import reduce

from protocol.core.rng import Rng
from simulations.adversaries.joining import false_sync
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
"""Without certain protocol violations, which would soon end the other attacks."""


def covert_flash(parts: Parts, rng: Rng) -> Parts:
    """Run several attacks from the scenario's start time on, and none before."""
    return reduce(lambda done, behaviour: behaviour(done, rng), AT_ONCE, parts)


def cold_boot(parts: Parts, rng: Rng) -> Parts:
    """Do the same, and answer synchronisation requests with nothing."""
    return covert_flash(false_sync(parts, rng), rng)
