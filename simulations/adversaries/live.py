"""The adversaries of simulations on the ports of a live node, found through entry points.

``node`` never imports this package; it looks the names up in the group ``prime_node.attacks``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from node.context import Ports
from protocol.core.crypto import Signer
from protocol.replica.replica import Replica
from simulations import adversaries
from simulations.adversaries import records, streams, unverifiable
from simulations.adversaries.rpcs import RPC_FLOODS
from simulations.ports.parts import Behaviour, Parts
from simulations.ports.storage import Disk, Session

Attack = Callable[[Ports, Signer, Callable[[], Replica | None], int], Ports]
"""``(ports, signer, replica, times)`` to the ports of an attacking daemon; ``times`` multiplies the
rate of a simulated one."""


def _live(behaviour: Behaviour) -> Attack:
    def attack(
        ports: Ports, signer: Signer, replica: Callable[[], Replica | None], times: int
    ) -> Ports:
        nothing: Any = None  # transports need no engines
        parts = Parts(signer, ports, nothing, Disk(), Session(), replica)
        return behaviour(replace(parts, times=times), ports.rng.child("attack")).ports

    return attack


junk_commits = _live(unverifiable.junk_commits)
slow_streams = _live(streams.slow_streams)
stream_flood = _live(streams.stream_flood)
record_spam = _live(records.record_spam)
covert_flash = _live(adversaries.covert_flash)
graft_flood = _live(RPC_FLOODS["graft-flood"])
ihave_flood = _live(RPC_FLOODS["ihave-flood"])
iwant_flood = _live(RPC_FLOODS["iwant-flood"])
invalid_signatures = _live(RPC_FLOODS["invalid-signatures"])
malformed_rpc = _live(RPC_FLOODS["malformed-rpc"])
slow_rpc = _live(RPC_FLOODS["slow-rpc"])
