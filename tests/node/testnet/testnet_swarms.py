"""Recorded swarms to draw and to report on."""

from dataclasses import replace
from pathlib import Path

from node.api.status import (
    CheckpointStatus,
    MemberStatus,
    NodeStatus,
    RolloutCounts,
    TrafficStatus,
)
from node.testnet.plan import NodePlan, Options
from node.testnet.poll import Sample
from node.testnet.record import SwarmRecord
from protocol.crypto import Identity
from protocol.rng import Rng
from protocol.types import PeerId

STARTED_AT = 1_000_000.0
MEGABYTE = 1_000_000


def peer_id(name: str) -> PeerId:
    return Identity(Rng(b"testnet").child(name).bytes(32)).peer_id


def plans(options: Options) -> list[NodePlan]:
    return [
        NodePlan(name, role, behaviour, options.directory / name, peer_id(name))
        for name, role, behaviour in options.members()
    ]


def status(plan: NodePlan, **changes) -> NodeStatus:
    base = NodeStatus(
        peer_id=plan.peer_id,
        run_id="ab" * 32,
        run_name="testnet",
        roles=(str(plan.role),),
        state="ready",
        reason="",
        started_at=STARTED_AT + 10,
        epoch=12,
        addresses=(f"/ip4/127.0.0.1/tcp/40001/p2p/{plan.peer_id}",),
        peers_connected=7,
        peers_banned=0,
        policy_version=3,
        policy_version_newest=3,
        policy_lag_max=1,
        first_certificate_at=None,
        members=(),
        rollouts=RolloutCounts(),
        own_rollouts=RolloutCounts(),
        workers={},
        checkpoints=(),
        traffic=TrafficStatus(),
        p2pd_pid=None,
    )
    return replace(base, **changes)


def sample(given: NodeStatus | None, *, pid: int = 100, running: bool = True, peak: int = 300):
    return Sample(pid, running, given, peak * MEGABYTE, 40 * MEGABYTE)


def checkpoint(version: int, reward: float, uncertified: int = 0) -> CheckpointStatus:
    return CheckpointStatus(version, reward, STARTED_AT + 20 + 4 * version, 4, uncertified)


def learned_swarm(*, cheaters: int = 5, versions: int = 37, outsiders: int = 1) -> SwarmRecord:
    """A swarm in the middle of its run, every number different."""
    options = Options(Path("swarm"), cheaters=cheaters)
    record = SwarmRecord(STARTED_AT)
    curve = tuple(
        checkpoint(version, 0.0 if version == 0 else 0.9 - 0.55 * 0.95**version)
        for version in range(versions + 1)
    )
    nodes = plans(options)
    liars = [plan for plan in nodes if plan.behaviour]
    workers = {plan.peer_id: RolloutCounts(2, 0, 1, 1, 0, {"computation": 1}) for plan in liars}
    workers[peer_id("inference-1")] = RolloutCounts(60, 57, 0, 0, 50)
    joined = MemberStatus(peer_id("outsider"), ("inference",), versions, 1.5, "0.1.0", "good")
    for index, plan in enumerate(nodes):
        record.add(plan)
        given = status(
            plan,
            policy_version=versions - index % 3,
            policy_version_newest=versions,
            first_certificate_at=STARTED_AT + 31,
            members=(joined,) * outsiders,
            rollouts=RolloutCounts(190 + index, 171, 5, 1, 160, {"computation": 4, "sampling": 1}),
            own_rollouts=RolloutCounts(60, 57, 1 if plan.behaviour else 0),
            workers=workers,
            checkpoints=curve,
            traffic=TrafficStatus(
                weights_sent=(index + 1) * 11_000_000, weights_received=9_400_000
            ),
            state="draining" if index == 7 else "ready",
            reason="peer unreachable for 12 s" if index == 5 else "",
        )
        record.observe(plan.name, sample(given, peak=300 + index))
    record.note_memory("testnet", 90 * MEGABYTE)
    return record
