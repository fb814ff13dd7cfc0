"""Recorded swarms for the display and the report."""

from dataclasses import replace
from pathlib import Path

from node.api.contributors import OwnWork
from node.api.downloads import DownloadStatus, PeerTrafficStatus, StripeStatus
from node.api.status import HistogramStatus, NodeStatus, TrafficStatus
from node.api.v1.answers import PeerRow, RolloutCounts, VersionDetail
from node.testnet.plan import NodePlan, Options
from node.testnet.poll import StatusSample
from node.testnet.record import SwarmRecord
from node.testnet.screen import Screen
from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from roles.runtime.training_steps import TrainingStep
from tests.node.api.status_examples import published

STARTED_AT = 1_000_000.0
MEGABYTE = 1_000_000


def peer_id(name: str) -> PeerId:
    return Identity(Rng(b"testnet").child(name).bytes(32)).peer_id


def plans(options: Options) -> list[NodePlan]:
    return [
        NodePlan(name, role, behaviour, options.directory / name, peer_id(name))
        for name, role, behaviour in options.members()
    ]


def screen(**changes) -> Screen:
    values = {
        "environment": "arithmetic",
        "seed": 0,
        "steps": 60,
        "seconds_max": 300.0,
        "stage": "learning",
        "run_id": "1a2b3c4d5e",
        "join_script": "/tmp/swarm/join.sh",
        "status_script": "/tmp/swarm/status.sh",
        "web_url": "http://127.0.0.1:40001/",
    }
    return Screen(**values | changes)


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
        workers={},
        checkpoints=(),
        traffic=TrafficStatus(),
        p2pd_pid=None,
        policy_swap_seconds_median=1.5 if plan.role == "inference" else None,
    )
    return replace(base, **changes)


def sample(given: NodeStatus | None, *, pid: int = 100, running: bool = True, peak: int = 300):
    return StatusSample(pid, running, given, peak * MEGABYTE, 40 * MEGABYTE)


def checkpoint(version: int, reward: float, uncertified: int = 0) -> VersionDetail:
    at, more = STARTED_AT + 20 + 4 * version, {"trained_without_certificate": uncertified}
    return published(version, at, reward, commits=4, **more)


def learned_swarm(*, cheaters: int = 5, versions: int = 37) -> SwarmRecord:
    """Swarm in the middle of its run, every number different."""
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
    joined = PeerRow(
        peer_id("outsider"),
        me=False,
        roles=("inference",),
        policy_version=versions,
        age_seconds=1.5,
        software="0.1.0",
    )
    for index, plan in enumerate(nodes):
        record.add(plan)
        dishonest = int(bool(plan.behaviour))
        given = status(
            plan,
            policy_version=versions - index % 3,
            policy_version_newest=versions,
            first_certificate_at=STARTED_AT + 31,
            members=(joined,),
            rollouts=RolloutCounts(190 + index, 171, 5, 1, 160, {"computation": 4, "sampling": 1}),
            yours=OwnWork(certified=57, waiting=3 - dishonest, rejected=dishonest),
            workers=workers,
            checkpoints=curve,
            traffic=TrafficStatus(
                weights_sent=(index + 1) * 11_000_000, weights_received=9_400_000
            ),
            state="draining" if index == 7 else "ready",
            reason="peer unreachable for 12 s" if index == 5 else "",
            checks=HistogramStatus((40, 50), 9.0),
            training=TrainingStep(versions, STARTED_AT),
        )
        record.observe(plan.name, sample(given, peak=300 + index))
    record.note_memory("testnet", 90 * MEGABYTE)
    return record


def arrival(version: int, here: int, pieces: int = 40, **changes) -> DownloadStatus:
    """Version of two stripes with the first pieces here, equally many per stripe."""
    bits = f"{(1 << here) - 1 << (pieces - here):0{pieces}b}".ljust(-(-pieces // 4) * 4, "0")
    stripe = StripeStatus(
        0, peer_id("trainer-1"), pieces, here, f"{int(bits, 2):0{len(bits) // 4}x}"
    )
    base = DownloadStatus(
        name=f"version {version}",
        version=version,
        form="patch",
        bytes_here=2 * here * 100_000,
        total_bytes=2 * pieces * 100_000,
        saved_bytes=0,
        seconds=2.5,
        bytes_per_second=400_000,
        seconds_to_go=(pieces - here) / 2,
        arrived_at=None,
        root=peer_id("trainer-1"),
        root_bytes=here * 100_000,
        http_bytes=here * 50_000,
        stream_bytes=here * 150_000,
        stripes=(stripe, replace(stripe, number=1, parent=peer_id("relay-1"))),
        sources=(
            PeerTrafficStatus(peer_id("trainer-1"), here * 50_000, here * 50_000, 300_000),
            PeerTrafficStatus(peer_id("relay-1"), 0, here * 100_000, 100_000),
        ),
    )
    return replace(base, **changes)


def arrived(version: int, seconds: float) -> DownloadStatus:
    """Version that arrived this many seconds after its publication."""
    at = checkpoint(version, 0.0).created_at + seconds
    return arrival(version, 40, seconds=seconds, seconds_to_go=0.0, arrived_at=at, stripes=())


def give(record: SwarmRecord, name: str, *arrivals: DownloadStatus) -> None:
    status = record.nodes[name].status
    assert status is not None
    record.observe(name, sample(replace(status, arrivals=arrivals)))
