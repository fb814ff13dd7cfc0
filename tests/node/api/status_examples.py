"""Example status and explanation of a worker in a live swarm."""

from dataclasses import fields, replace

from pydantic import TypeAdapter

from node.api.contributors import OwnWork
from node.api.council import CouncilPage, CouncilRow, CouncilSummary
from node.api.downloads import DownloadStatus, HistogramStatus, PeerTrafficStatus, StripeStatus
from node.api.status import MachineStatus, NodeStatus, TrafficStatus
from node.api.v1.answers import PeerRow, RewardPoint, RolloutCounts, VersionDetail
from node.api.v1.rollouts import UNDECIDED
from node.api.why import Why
from protocol.core.crypto import Identity
from roles.runtime.metrics import PolicySwap
from roles.runtime.training_steps import TrainingStep
from simulations.checkers.limits import LIMITS

PEERS = [Identity(bytes([number]) * 32).peer_id for number in range(8)]
ROLES = ["relay", "trainer", "validator", "validator", "validator", "inference", "inference"]

ARRIVING = DownloadStatus(
    name="version 42",
    version=42,
    form="patch",
    bytes_here=370_000_000,
    total_bytes=988_000_000,
    saved_bytes=61_000_000_000,
    seconds=31.2,
    bytes_per_second=12_300_000,
    seconds_to_go=50.2,
    arrived_at=None,
    root=PEERS[1],
    root_bytes=90_000_000,
    http_bytes=280_000_000,
    stream_bytes=91_000_000,
    stripes=(
        StripeStatus(0, PEERS[1], 240, 240, "f" * 60),
        StripeStatus(1, PEERS[2], 240, 60, "f" * 15 + "0" * 45),
        StripeStatus(2, PEERS[1], 236, 59, "0" * 30 + "7" * 19 + "30" + "0" * 8),
        StripeStatus(3, "", 236, 0, "0" * 59),
    ),
    sources=(
        PeerTrafficStatus(PEERS[1], 280_000_000, 0, 8_100_000),
        PeerTrafficStatus(PEERS[2], 0, 60_000_000, 4_200_000),
        PeerTrafficStatus(PEERS[4], 1, 31_000_000, 0),
    ),
)

ARRIVED = replace(
    ARRIVING,
    name="version 41",
    version=41,
    bytes_here=988_000_000,
    seconds_to_go=0.0,
    arrived_at=1_700_000_050.0,
    stripes=(),
)

STEP = TrainingStep(
    version=42,
    ended_at=1_700_000_040.0,
    reward_mean=0.84,
    reward_std=0.366,
    groups_teaching_fraction=0.75,
    sequences_offered=64,
    sequences_used=48,
    entropy_nats=0.412,
    kl_nats=0.00081,
    gradient_norm=1.25,
    clip_low_fraction=0.002,
    clip_high_fraction=0.004,
    mismatch_mean_nats=0.034,
    mismatch_p99_nats=0.19,
    mismatch_clip_fraction=0.018,
    engine_mismatch_mean_nats=0.031,
    engine_mismatch_p99_nats=0.18,
    engine_mismatch_clip_fraction=0.013,
    loss=-0.013,
    learning_rate=1e-5,
    updates=1,
    answer_tokens_mean=14.5,
    answers_cut_fraction=0.03,
    staleness_mean_versions=1.25,
    staleness_max_versions=2,
    tokens_per_second=118.0,
    step_seconds=31.5,
    idle_seconds=4.25,
    ranks=2,
    memory_peak_bytes=2_140_000_000,
)


def published(version, created_at, reward_mean, **changes):
    """Return a version of which no encoding is known."""
    fields = {"publisher": PEERS[1], "term": 0, "digest": "d1" * 32, "policy": "90" * 32}
    fields |= {"commits": 4 * (version > 0), "forms": (), "here": True, **changes}
    return VersionDetail(version, created_at, reward_mean=reward_mean, **fields)


def gossip_peer(peer_id, score, level="good", **changes):
    return PeerRow(peer_id, me=False, connected=True, score=score, level=level, **changes)


COUNCIL = CouncilPage(
    text="3 members (6 seats, era 2), final page 3 s ago, no votes of 1 of 3 members (…SUKPH5); "
    "the others can remove it in 12 s",
    seat="5e" * 32,
    number=2,
    trusted_page="120:" + "a9" * 32,
    since_epoch=158,
    era=2,
    draw_epoch=540,
    draw_seconds=128.5,
    members_count=3,
    seats_total=6,
    quorum=5,
    recovery_quorum=4,
    absent_count=1,
    votes_missing=1,
    notarised_epoch=411,
    final_epoch=410,
    final_votes=2,
    final_age_epochs=2,
    final_age_seconds=3.5,
    drawn_epoch=411,
    recent_epochs=60,
    notarised_share=0.95,
    drawing_share=0.9,
    leader=PEERS[1],
    term=3,
    is_leader_live=True,
    final_version=39,
    recovery_at=1_700_000_900.0,
    members=tuple(
        CouncilRow(
            peer_id=peer,
            me=False,
            is_genesis=True,
            seats=index + 1,
            since_epoch=158 if index == 2 else -1,
            since_at=1_700_000_158.0,
            vote_epoch=411 - 9 * index,
            vote_age_seconds=1.5 + 18 * index,
            is_absent=index > 0,
            is_silent=index == 1,
            evidence="two votes in epoch 393" if index == 2 else "",
        )
        for index, peer in enumerate(PEERS[2:5])
    ),
    no_seat="the draw of era 2 gave it none; the next draw is due at epoch 540",
)
"""A council of three, one of them silent and one with evidence against it."""

YOURS = OwnWork(
    certified=128,
    tokens=1_900_000,
    trained=120,
    credit_share=0.031,
    unlocked=150_000_000,
    locked=40_000_000,
    rank=7,
    contributors=41,
    waiting=12,
    rejected=2,
    rejected_reasons={"computation": 1, "reward": 1},
)

_SUMMARY = {one.name: getattr(COUNCIL, one.name) for one in fields(CouncilSummary)}
TABLE_LIMITS = {**LIMITS, "http_addresses": 4096}
STATUS = NodeStatus(
    peer_id=PEERS[6],
    run_id="5f" * 32,
    run_name="testnet",
    tables=dict.fromkeys(TABLE_LIMITS, 0),
    table_limits=TABLE_LIMITS,
    roles=("inference",),
    state="ready",
    reason="",
    started_at=1_700_000_000.0,
    epoch=412,
    addresses=(f"/ip4/192.168.1.20/tcp/31337/p2p/{PEERS[6]}",),
    peers_connected=7,
    peers_banned=0,
    policy_version=41,
    policy_version_newest=42,
    policy_lag_max=2,
    first_certificate_at=1_700_000_021.5,
    council=CouncilSummary(**_SUMMARY),
    members=tuple(
        PeerRow(
            peer_id=peer,
            me=index == 6,
            roles=(role,),
            policy_version=42 - index % 2,
            age_seconds=1.5 * index,
            software="prime-node 0.1.0",
            reputation="slashed" if index == 5 else "trusted",
            scoring="" if role == "relay" else f"{index}5" * 32,
        )
        for index, (peer, role) in enumerate(zip(PEERS, ROLES, strict=False))
    ),
    members_count=7,
    members_by_role={"relay": 1, "trainer": 1, "validator": 3, "inference": 2},
    dial_failures=3,
    machine=MachineStatus(
        "0.1.0", 5_000_000_000, 9_000_000_000, 80_000_000, 0, 0, 0, {"syncing": 12.5}
    ),
    rollouts=RolloutCounts(860, 812, 12, 4, 790, {"computation": 9, "rewards": 3}),
    yours=YOURS,
    workers={PEERS[6]: RolloutCounts(120, 118, 1, 0, 110, {"computation": 1})},
    checkpoints=tuple(
        published(version, 1_700_000_000.0 + version, version / 50) for version in range(43)
    ),
    rewards=tuple(
        RewardPoint(version, version / 50, 1_700_000_000.0 + version) for version in range(1, 43)
    ),
    traffic=TrafficStatus(
        blobs_sent=3_100_000_000,
        blobs_received=1_250_000_000,
        weights_sent=2_400_000_000,
        weights_received=1_200_000_000,
        weights_sent_http=2_000_000_000,
        weights_received_http=1_100_000_000,
        weights_saved=60_000_000_000,
        gossip_sent=12_000_000,
        gossip_received=11_000_000,
        gossip_dropped=0,
    ),
    p2pd_pid=4711,
    arrivals=(ARRIVING, ARRIVED),
    durations={"patch": HistogramStatus((9, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1), 2345.5)},
    receivers=(
        PeerTrafficStatus(PEERS[3], 0, 700_000_000, 9_000_000),
        PeerTrafficStatus("203.0.113.7", 1_000_000, 0, 400_000),
    ),
    gossip_peers=(
        *(
            gossip_peer(peer, 1.25 - index / 4, outbound=index % 2 == 0, mesh=("commits", "roster"))
            for index, peer in enumerate(PEERS[:5])
        ),
        gossip_peer(
            PEERS[5],
            -11.0,
            "no-gossip",
            backoff_seconds={"commits": 42.5},
            invalid=1,
            breaches=2,
            faults=1,
        ),
        gossip_peer(
            PEERS[7], -91.0, "graylisted", first_deliveries=0.5, invalid=3, faults=1, neighbours=2
        ),
    ),
    restored=True,
    generations=HistogramStatus((0, 3, 100, 12, 3, 0, 0, 0, 0, 0, 0, 2), 310.5),
    checks=HistogramStatus((0, 0, 7, 30, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0), 4.25),
    policy_swap=PolicySwap(41, 2.25, 7.5, 7.75),
    policy_swaps=HistogramStatus((0, 0, 0, 3, 30, 8, 0, 0, 0, 0), 290.5),
    policy_swap_seconds_median=6.0,
)


def failed(slot, outcome, **more):
    """Return a rollout of this node as JSON."""
    row = {"worker": PEERS[6], "at": 1_700_000_000.0, "sequences": 8, "tokens": 96}
    return {
        "row": row | slot | outcome,
        "checkpoint": "c4" * 32,
        "body": "b0" * 32,
        "body_bytes": 4123,
        "committee": {"epoch": slot["epoch"] + 1},
        **more,
    }


_WHY = {
    "state": "paused",
    "reason": "2 batches wait for the trainer",
    "slashed": False,
    "forks": [],
    "doubts": [],
    "council": "",
    "rollouts": [
        failed(
            {"commit": "ab12" * 16, "version": 40, "slot": 3, "epoch": 398},
            {"state": "rejected", "reason": "computation"},
            certificate="cd" * 32,
            verdicts=[
                {
                    "validator": peer,
                    "place": index,
                    "accept": peer == PEERS[4],
                    "reason": "accepted" if peer == PEERS[4] else "computation",
                    "detail": "" if peer == PEERS[4] else "sequence 5, chunk 0",
                    "evidence": f"{index:02x}" * 32,
                    "measured": [
                        {"name": "sampling_gap", "value": 2e-8, "allowed": 1e-7},
                        {
                            "name": "exponent_mismatches_max",
                            "value": 2.0 if peer == PEERS[4] else 61.0,
                            "allowed": 4.0,
                        },
                    ],
                }
                for index, peer in enumerate(PEERS[2:5])
            ],
        ),
        failed(
            {"commit": "ef34" * 16, "version": 41, "slot": 0, "epoch": 401},
            {"state": "expired", "reason": UNDECIDED},
        ),
    ],
    "trained_on_rejected": [
        {"version": 41, "trainer": PEERS[1], "commits": ["ab12" * 16, "0c" * 32]},
    ],
}

EXPLAINED = TypeAdapter(Why).validate_python(_WHY)
WHY = TypeAdapter(Why).dump_python(EXPLAINED, mode="json")
