"""Recorded states of nodes, for the pages to display."""

import random
from dataclasses import replace

from node.api.contributors import SHOWN_MAX, ContributorRow, ContributorsPage, OwnWork
from node.api.council import CouncilSummary
from node.api.v1.answers import (
    Drawn,
    EncodingDetail,
    Forest,
    Limit,
    MachineGpu,
    MachinePage,
    Overview,
    PeerPage,
    PeerRow,
    RewardPoint,
    RolloutCounts,
    RolloutDetail,
    RolloutRow,
    RunEvent,
    RunPage,
    SampleHistory,
    SequenceDetail,
    TrainingPage,
    Usage,
    VerdictDetail,
    VersionDetail,
    WeightsPage,
)
from node.api.v1.recording import RecordedSwarm
from node.api.v1.samples import COLUMNS
from node.api.v1.training import POINTS_MAX
from protocol.core.crypto import Identity
from protocol.rollout.evaluation import EvaluationPoint
from protocol.shardcast.forest import ForestMember, ForestMembers, tree
from roles.runtime import training_steps
from roles.runtime.training_steps import TrainingStep
from tests.node.api.status_examples import ARRIVED, ARRIVING

STARTED_AT = 1_780_000_000.0
ROLES = ("trainer", "validator", "validator", "validator", "relay")
STATISTICS = (
    "logprob_error",
    "logprob_shift",
    "logprob_outliers",
    "sampling_mismatches",
    "sampling_gap",
    "sampling_surprise",
    "exponent_mismatches",
    "mantissa_error",
    "exponent_mismatches_max",
    "logprob_error_max",
)

HOSTILE = (
    "<script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "javascript:window.pwned=1",
    "<svg onload=window.pwned=1>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "\u202egnp.exe\u202c \u0000\u001b[31mred\u2066 ",
    "A" * 5000,
    "<style>body{display:none}</style>",
    "</pre></section><h1>ready</h1>",
)


def peers_of(count):
    """Return the ids of a swarm's members; the same ones in each call."""
    return [Identity(number.to_bytes(32, "big")).peer_id for number in range(1, count + 1)]


def role_of(number):
    return ROLES[number] if number < len(ROLES) else "inference"


def rollout(number, worker, validators, *, state="certified", reason="", text=("2+3=", "5<end>")):
    """Return a worker's rollout with the validators that checked it."""
    draw = random.Random(number)
    honest = state != "rejected"
    verdicts = tuple(
        VerdictDetail(
            validator,
            place,
            accept=honest,
            reason="accepted" if honest else reason,
            detail="" if honest else f"sequence {place}: claimed 1, recomputed 0",
            evidence=f"{number:04x}{place:04x}" * 8,
            measured=tuple(
                Limit(name, scale * draw.uniform(0.05, 0.9 if honest else 2.4), scale)
                for name, scale in zip(
                    STATISTICS, (0.01, 0.002, 0.3, 0.05, 1e-7, 0.4, 4, 3e-6, 60, 1), strict=True
                )
            ),
        )
        for place, validator in enumerate(validators)
    )
    row = RolloutRow(
        commit=f"{number * 2654435761 % 2**32:08x}" * 8,
        worker=worker,
        version=number // 4,
        slot=number % 4,
        epoch=number // 3,
        at=STARTED_AT + number,
        sequences=8,
        tokens=8 * 12,
        state=state,
        reason=reason,
        escalated=not honest,
        accepts=sum(one.accept for one in verdicts),
        rejects=sum(not one.accept for one in verdicts),
        trained_in=number // 4 + 1 if honest else None,
        reward=round(min(1.0, 0.3 + number / 200), 3),
    )
    prompt, completion = text
    sequences = tuple(
        SequenceDetail(group, 12, 12, float(index % 2), prompt, completion)
        for group in range(2)
        for index in range(4)
    )
    return RolloutDetail(
        row=row,
        checkpoint="c4" * 32,
        body="b0" * 32,
        body_bytes=4123,
        committee=Drawn(row.epoch + 1, tuple(validators[:2]), tuple(validators), 2),
        verdicts=verdicts,
        certificate="ce" * 32,
        certified_by=validators[0],
        sequences=sequences,
        sequences_total=8,
    )


def forest_of(peers, version):
    members = ForestMembers(ForestMember(peer, 12_500_000, reachable=True) for peer in peers)
    root, names = peers[0], list(peers)
    places = {peer: place for place, peer in enumerate(names)}
    parents = []
    for stripe in range(4):
        line = tree(members, root, bytes([version % 256]) * 32, stripe, 4, 4)
        above = [line.parents.get(peer) for peer in names]
        parents.append(
            tuple(-2 if one is None else -1 if one == root else places[one] for one in above)
        )
    return Forest(version, root, 4, tuple(names), (12_500_000,) * len(names), tuple(parents))


def ready(count=14, versions=41, steps=60):
    """Return a working node in a swarm of ``count`` members after ``versions`` versions."""
    peers = peers_of(count)
    me, validators, workers = peers[-1], peers[1:4], peers[5:] or peers[-1:]
    draw = random.Random(7)
    width = -(-versions // POINTS_MAX)
    rewards = tuple(
        RewardPoint(
            version,
            round(0.35 + 0.55 * version / versions + draw.uniform(-0.05, 0.05), 4),
            STARTED_AT + 3 * version,
        )
        for version in range(width, versions + 1, width)
    )
    found = [rollout(number, workers[number % len(workers)], validators) for number in range(120)]
    for number, reason in ((5, "reward"), (23, "computation"), (61, "format")):
        found[number] = rollout(
            number, workers[number % len(workers)], validators, state="rejected", reason=reason
        )
    rejected = [one.row for one in found if one.row.state == "rejected"]
    happened = [
        RunEvent("leader/0", STARTED_AT, "leader", peers[0], "published the first version"),
        *(
            RunEvent(
                f"slashed/{row.worker}",
                row.at + 2,
                "slashed",
                row.worker,
                f"slashed for {row.reason}: its further commits are ignored",
                ("ce" * 32,),
                row.commit,
            )
            for row in rejected
        ),
        RunEvent("state/1", STARTED_AT + 100, "paused", me, "this node is paused: disk full"),
    ]
    pace = 20 if versions > POINTS_MAX else 2
    seconds = range(0, 180 * pace, pace)
    columns = dict.fromkeys(COLUMNS, (0.0,) * len(seconds)) | {
        "certified": tuple(float(at * 2 // 3 + draw.randrange(2)) for at in seconds),
        "rejected": tuple(float(at // 90) for at in seconds),
        "backlog": tuple(float(6 + at % 14 // 3) for at in seconds),
    }
    contributors = contributors_of(peers, me)
    counts = RolloutCounts(860, 812, 12, 4, 790, {"computation": 6, "reward": 4, "format": 2})
    rows = tuple(
        PeerRow(
            peer,
            me=peer == me,
            name=name_of(number),
            roles=(role_of(number),),
            policy_version=versions - number % 2,
            age_seconds=float(number % 9),
            software="prime-node/0.1.0",
            reputation="genesis" if number < 4 else "slashed" if number == 8 else "trusted",
            connected=number < 32,
            round_trip_seconds=0.004 * (number + 1) if number < 32 else None,
            reachable=number % 5 != 0,
            upload_bytes_per_second=12_500_000,
            addresses=(f"/ip4/203.0.113.{number % 250}/tcp/31337/p2p/{peer}",),
            machine="1 x NVIDIA H100, 80 GB, 16 cores, 128 GB",
            score=1.25,
            level="good",
            certified=40,
            rejected=int(number == 8),
        )
        for number, peer in enumerate(peers)
    )
    roles = {role: sum(role in row.roles for row in rows) for role in {*ROLES, "inference"}}
    published = tuple(
        VersionDetail(
            version,
            STARTED_AT + 3 * version,
            peers[0],
            0,
            "d1" * 32,
            "90" * 32,
            0.8,
            4,
            (EncodingDetail("file", -1, 4_900_000), EncodingDetail("patch", version - 1, 310_000)),
            here=version > versions - 6,
            trainers=(peers[0], peers[1]) if version == versions else (),
        )
        for version in range(versions, max(0, versions - 60), -1)
    )
    return RecordedSwarm(
        title="arithmetic-testnet",
        overview=Overview(
            peer_id=me,
            roles=("inference",),
            run_id="5f" * 32,
            run_name="arithmetic-testnet",
            state="ready",
            reason="",
            started_at=STARTED_AT,
            now=STARTED_AT + 754,
            epoch=412,
            epoch_seconds=2.0,
            steps_total=steps,
            policy_version_newest=versions,
            policy_version=versions - 1,
            policy_lag_max=2,
            seconds_to_go=2296.0,
            certified_per_minute=41.5,
            trainer_idle_share=0.12,
            leader=peers[0],
            council=CouncilSummary(
                text="3 members, final page 3 s ago, all votes",
                leader=peers[0],
                leader_name=name_of(0),
                term=1,
                is_leader_live=True,
                final_version=versions - 2,
            ),
            members_by_role=roles,
            members_count=count,
            peers_connected=min(32, count - 1),
            backlog=6,
            slashed=1,
            rollouts=counts,
            yours=contributors.yours,
            rewards=rewards,
            evaluation=evaluated(rewards),
            happened=tuple(reversed(happened)),
        ),
        history=SampleHistory(float(pace), tuple(STARTED_AT + at for at in seconds), columns),
        rollouts=tuple(reversed(found)),
        peers=PeerPage(rows, count, count, min(32, count - 1), 1, roles),
        weights=WeightsPage(published, (ARRIVING, ARRIVED), (), {}, (), forest_of(peers, versions)),
        machine=MachinePage(
            pid=4711,
            software="prime-node/0.1.0",
            started_at=STARTED_AT,
            now=STARTED_AT + 754,
            memory=(Usage("this node", 96e6, 24e9), Usage("machine", 11e9, 24e9)),
            disk=(
                Usage("blobs", 3.1e9, 20e9),
                Usage("weights", 1.2e9),
                Usage("state", 4.2e6),
                Usage("file system", 412e9, 450e9),
            ),
            data_dir="/var/lib/prime-node",
            gpus=(MachineGpu("NVIDIA H100 80GB HBM3", 61_000_000_000, 80_000_000_000),),
            cores=16,
            load=(1.2, 0.9, 0.7),
            queues=(
                Usage("messages being validated", 3, 1024, "count"),
                Usage("send queue of the slowest peer", 3.9e6, 4 << 20, "bytes"),
                Usage("roster members", count, 20_000, "count"),
            ),
            loop_delays=(9100, 240, 60, 12, 3, 0, 1, 0, 0),
            loop_bounds=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
            loop_delay_seconds_max=0.62,
            traffic={"blobs sent": 3_100_000_000, "blobs received": 1_250_000_000},
            log=tuple(f'{{"message": "line {number}", "level": "info"}}' for number in range(80)),
        ),
        run=RunPage(
            run_id="5f" * 32,
            name="arithmetic-testnet",
            creator=peers[0],
            created_at=STARTED_AT - 3600,
            words=(
                ("run", "arithmetic-testnet"),
                ("model", "tiny, qwen3 in float32"),
                ("training", "60 versions, each from 4 rollouts at most 2 versions old"),
                ("validators", "\n".join(validators)),
            ),
            join_command=f"prime-node --role inference --run-id {'5f' * 32} --initial-peers "
            f"/ip4/203.0.113.7/tcp/31337/p2p/{peers[4]}",
            signed="ab" * 64,
        ),
        happened=tuple(reversed(happened)),
        training=rewards_known(rewards),
        contributors=contributors,
    )


NAMES = ("Ada's workshop", "", "Éva Kovács", "田中 太郎", "", "שרה", "M" * 32, "<b>bold</b> & co")


def name_of(number):
    return NAMES[number % len(NAMES)]


def contributors_of(peers, me):
    """Return contributors with falling credit; the first ones are a trainer and validators."""
    total = sum(range(1, len(peers) + 1))
    rows = [
        ContributorRow(
            rank=rank,
            peer_id=peer,
            me=peer == me,
            name=name_of(rank - 1),
            rollouts=0 if rank < 5 else 900 - 9 * (rank % 90),
            tokens=0 if rank < 5 else 1_234_567 - 9876 * (rank % 90),
            checks=2000 if 1 < rank < 5 else 0,
            steps=40 if rank == 1 else 0,
            credit_share=(len(peers) + 1 - rank) / total,
            unlocked=98_765_432 // rank,
            locked=1_234_567 // rank,
            since_epoch=3 * rank,
            since_at=STARTED_AT + 6 * rank,
            slashed_epoch=211 if rank == 9 else -1,
        )
        for rank, peer in enumerate(peers, start=1)
    ]
    own = next(row for row in rows if row.me)
    yours = OwnWork(
        certified=own.rollouts,
        tokens=own.tokens,
        trained=own.rollouts - 8,
        checks=own.checks,
        steps=own.steps,
        credit_share=own.credit_share,
        unlocked=own.unlocked,
        locked=own.locked,
        rank=own.rank,
        contributors=len(rows),
        waiting=12,
        rejected=2,
        rejected_reasons={"computation": 1, "reward": 1},
    )
    return ContributorsPage(
        rows=tuple(rows[:SHOWN_MAX]),
        own=own,
        yours=yours,
        total=len(rows),
        rollouts=812,
        tokens=9_876_543,
        steps=40,
        credit=123_456_789,
        slashed=1,
        epoch=410,
    )


def evaluated(rewards):
    """Return an evaluation of every fifth version, slightly below the training reward."""
    return tuple(
        EvaluationPoint(
            one.version,
            problems=16,
            answers=128,
            reward_mean=one.reward * 0.9,
            reward_low=one.reward * 0.8,
            reward_high=one.reward * 0.95,
            solved_fraction=one.reward * 0.9,
            solved_low=one.reward * 0.8,
            solved_high=one.reward * 0.95,
        )
        for one in rewards
        if not one.version % 5
    )


def rewards_known(rewards):
    """Return the view of a node that trained no version."""
    values = tuple(point.reward for point in rewards)
    return TrainingPage(tuple(point.version for point in rewards), {"reward_mean": values})


def joining():
    """Return a node that has found no peers yet."""
    me = peers_of(1)[0]
    reason = "no bootstrap peer answers; trying again"
    known = ready()
    return RecordedSwarm(
        title="",
        overview=Overview(
            me, "", "", ("inference",), "joining", reason, STARTED_AT, STARTED_AT + 12
        ),
        history=SampleHistory(),
        rollouts=(),
        peers=PeerPage(),
        weights=WeightsPage(),
        machine=replace(known.machine, queues=(), gpus=(), traffic={}, loop_delays=(0,) * 9),
        run=RunPage(),
        happened=(),
    )


def slashed():
    """Return a worker with a proven false rollout."""
    known = ready()
    me = known.overview.peer_id
    reason = "this node is slashed; see `prime-node why`"
    lie = RunEvent(
        f"slashed/{me}",
        STARTED_AT + 700,
        "slashed",
        me,
        "slashed for reward: its further commits are ignored",
        ("ce" * 32,),
        known.rollouts[-6].row.commit,
    )
    rows = tuple(replace(row, reputation="slashed") if row.me else row for row in known.peers.rows)
    return replace(
        known,
        overview=replace(
            known.overview,
            state="paused",
            reason=reason,
            happened=(lie, *known.overview.happened),
        ),
        peers=replace(known.peers, rows=rows),
        contributors=replace(
            known.contributors,
            rows=tuple(
                replace(row, slashed_epoch=350) if row.me else row
                for row in known.contributors.rows
            ),
            yours=replace(known.contributors.yours, slashed=True, locked=0, forfeited=88_183),
        ),
        happened=(lie, *known.happened),
    )


def hostile():
    """Return a node whose peers put harmful text into every field."""
    known = ready()
    words = [HOSTILE[number % len(HOSTILE)] for number in range(40)]
    rollouts = []
    for number, one in enumerate(known.rollouts):
        word = words[number % len(words)]
        verdicts = tuple(
            replace(verdict, reason=word, detail=word, validator=word[:60], name=word)
            for verdict in one.verdicts
        )
        sequences = tuple(
            replace(sequence, prompt=word, completion=word) for sequence in one.sequences
        )
        row = replace(one.row, reason=word, worker=word[:60], name=word)
        rollouts.append(replace(one, row=row, verdicts=verdicts, sequences=sequences, note=word))
    happened = tuple(
        replace(one, text=words[number], subject=words[number][:60], name=words[number])
        for number, one in enumerate(known.happened)
    )
    rows = tuple(
        replace(
            row,
            name=words[number],
            software=words[number],
            machine=words[number],
            addresses=(words[number],),
            roles=(words[number][:20], *row.roles),
            level=words[number][:20],
        )
        for number, row in enumerate(known.peers.rows)
    )
    contributed = replace(
        known.contributors,
        rows=tuple(
            replace(row, name=words[number], peer_id=words[number][:60])
            for number, row in enumerate(known.contributors.rows)
        ),
        yours=replace(known.contributors.yours, rejected_reasons=dict.fromkeys(HOSTILE, 3)),
    )
    counts = replace(known.overview.rollouts, rejected_reasons=dict.fromkeys(HOSTILE, 3))
    arrivals = tuple(
        replace(one, name=HOSTILE[0], form=HOSTILE[1]) for one in known.weights.arrivals
    )
    return replace(
        known,
        title=HOSTILE[0],
        overview=replace(
            known.overview,
            run_name=HOSTILE[1],
            reason=HOSTILE[0],
            rollouts=counts,
            council=replace(known.overview.council, leader_name=HOSTILE[5]),
            happened=happened,
        ),
        rollouts=tuple(rollouts),
        contributors=contributed,
        peers=replace(known.peers, rows=rows),
        weights=replace(known.weights, arrivals=arrivals, note=HOSTILE[3]),
        machine=replace(known.machine, log=tuple(words), data_dir=HOSTILE[0], software=HOSTILE[1]),
        run=replace(
            known.run,
            name=HOSTILE[0],
            words=tuple((word[:30], word) for word in words),
            join_command=HOSTILE[1],
        ),
        happened=happened,
    )


def trained(versions=41, *, warning=""):
    """Return a trainer's steps: a run that learns, with a pause of one step."""
    draw = random.Random(11)
    width = -(-versions // POINTS_MAX)
    steps = [
        TrainingStep(
            version=version,
            ended_at=STARTED_AT + 30 * version,
            reward_mean=(share := min(0.95, 0.3 + 0.6 * version / versions)) + draw.gauss(0, 0.03),
            reward_std=(share * (1 - share)) ** 0.5,
            groups_teaching_fraction=min(1.0, 4 * share * (1 - share) + draw.uniform(-0.1, 0)),
            sequences_offered=64,
            sequences_used=8 * draw.randrange(4, 9),
            entropy_nats=0.9 - 0.5 * version / versions + draw.gauss(0, 0.02),
            kl_nats=abs(draw.gauss(0.0008, 0.0003)),
            gradient_norm=abs(draw.gauss(1.2, 0.3)),
            clip_low_fraction=abs(draw.gauss(0.002, 0.001)),
            clip_high_fraction=abs(draw.gauss(0.004, 0.001)),
            mismatch_mean_nats=abs(draw.gauss(0.034, 0.002)),
            mismatch_p99_nats=abs(draw.gauss(0.19, 0.01)),
            mismatch_clip_fraction=abs(draw.gauss(0.018, 0.002)),
            engine_mismatch_mean_nats=abs(draw.gauss(0.031, 0.002)),
            engine_mismatch_p99_nats=abs(draw.gauss(0.18, 0.01)),
            engine_mismatch_clip_fraction=abs(draw.gauss(0.013, 0.002)),
            loss=draw.gauss(-0.01, 0.02),
            learning_rate=1e-5 * min(1.0, version / 8),
            updates=1,
            answer_tokens_mean=17 - 4 * version / versions + draw.gauss(0, 0.5),
            answers_cut_fraction=max(0.0, 0.2 - 0.4 * version / versions),
            staleness_mean_versions=draw.uniform(0.8, 1.6),
            staleness_max_versions=2,
            tokens_per_second=draw.gauss(120, 8),
            step_seconds=draw.gauss(31, 2),
            idle_seconds=abs(draw.gauss(9, 4)),
            ranks=2,
            memory_peak_bytes=2_140_000_000 + 1_000_000 * version,
        )
        for version in range(width, versions + 1, width)
    ]
    if warning:
        still = TrainingStep(steps[-1].version + width, STARTED_AT, 0.0, 0.0, 0.0, 64, 0, updates=0)
        steps.append(still)
    names = training_steps.STATISTICS
    columns = {name: tuple(getattr(step, name) for step in steps) for name in names}
    return TrainingPage(tuple(step.version for step in steps), columns, steps[-1], warning)


def trainer(versions=41):
    """Return the trainer of a swarm that learns."""
    known = ready(versions=versions)
    overview = replace(known.overview, roles=("trainer",))
    return replace(known, overview=overview, training=trained(versions))


def stuck():
    """Return a trainer whose last step had no informative group."""
    known = ready()
    still = TrainingStep(42, STARTED_AT, 0.0, 0.0, 0.0, 64, 0, updates=0)
    fault = (
        "no final page for 40 s: no votes of 1 of 3 members (…SUKPH5); the others can remove it now"
    )
    council = CouncilSummary(text=f"3 members, {fault}", fault=fault)
    changes = {"training_warning": still.warning, "council": council}
    overview = replace(known.overview, roles=("trainer",), **changes)
    return replace(known, overview=overview, training=trained(warning=still.warning))


STATES = {
    "joining": joining,
    "ready": ready,
    "stuck": stuck,
    "slashed": slashed,
    "peers-1000": lambda: ready(count=1000),
    "versions-10000": lambda: trainer(versions=10_000),
    "hostile": hostile,
}
