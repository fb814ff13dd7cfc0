"""One message of each kind with its files, made by the code with fixed keys."""

from typing import Any

import numpy as np

from protocol.consensus.member import Contents
from protocol.consensus.seals import seal_of
from protocol.core.codec import encode
from protocol.core.crypto import Identity, digest, verify
from protocol.core.types import ValidationResult
from protocol.messages import (
    PROTOCOL_VERSION,
    Certificate,
    CheckpointManifest,
    Contribution,
    Encoding,
    Evidence,
    Hardware,
    Invite,
    Message,
    NodeRecord,
    Objection,
    Overturn,
    RolloutCommit,
    RoundPlan,
    RoundResult,
    Signed,
    StepReport,
    TrainingRound,
    Verdict,
    seal,
    signature_of,
)
from protocol.replica.replica import Replica
from protocol.rollout.body import RolloutSequence, encode_body
from protocol.run.manifest import RunManifest, decode_manifest, sign_manifest
from protocol.shardcast import index as shard_index
from protocol.shardcast.encodings import stream
from protocol.shardcast.index import Shard, ShardIndex, chunk_digests
from tests.vectors import core_reference
from tests.worlds.page_book import PageBook, knows
from tests.worlds.tensor_files import file_of

CREATOR, *VALIDATORS = (Identity(seed) for seed in core_reference.SEEDS)
TRAINER = WORKER = CREATOR

MANIFEST = decode_manifest(encode(core_reference.manifest()))
assert isinstance(MANIFEST, RunManifest)
SIGNED_MANIFEST = sign_manifest(MANIFEST, CREATOR)

FILE = bytes(range(256)) * 1200
"""A weights file of two shards."""

BODY = encode_body(
    [
        RolloutSequence((2 + n, 3, 1), (-0.5, -0.25 * n, 0.0), 1_000_000 * (n % 2), (bytes(258),))
        for n in range(4)
    ]
)


def now(epoch: int) -> float:
    """Return a time within an epoch."""
    return MANIFEST.epoch_start(epoch) + 1


def sealed(message: Message, signer: Identity) -> Signed[Any]:
    return seal(message, MANIFEST.run_id, signer)


# One message of each kind


def record(signer: Identity, role: str) -> Signed[NodeRecord]:
    message = NodeRecord(
        sequence=round(now(0) * 1000),
        joined_at=round(MANIFEST.epoch_start(0) * 1000),
        roles=(role, "relay"),
        addresses=(f"/ip4/192.0.2.1/tcp/4001/p2p/{signer.peer_id}",),
        hardware=Hardware(gpu="none", cores=2, memory_bytes=2**34),
        upload_bytes_per_second=1_250_000,
        reachable=True,
        witnessed=(bytes(32), bytes([1]) * 32),
        upload_classes=(40, 0),
        software="prime-node 0.1.0",
        protocol_version=PROTOCOL_VERSION,
        policy_version=0,
        checkpoint=GENESIS.digest,
    )
    return sealed(message, signer)


def index() -> ShardIndex:
    rules = MANIFEST.shardcast
    shards = []
    for start in range(0, len(FILE), rules.shard_bytes):
        data = FILE[start : start + rules.shard_bytes]
        shards.append(Shard(digest(data), len(data), chunk_digests([data], rules.chunk_bytes)))
    return ShardIndex(len(FILE), rules.shard_bytes, rules.chunk_bytes, tuple(shards))


INDEX = shard_index.encode(index())

GENESIS = sealed(
    CheckpointManifest(
        version=0,
        term=0,
        parent=b"",
        policy=MANIFEST.genesis_policy,
        index=digest(INDEX),
        index_bytes=len(INDEX),
        total_bytes=len(FILE),
        created_at=round(now(0) * 1000),
    ),
    TRAINER,
)

COMMIT = sealed(
    RolloutCommit(
        epoch=0,
        version=0,
        checkpoint=GENESIS.digest,
        slot=0,
        body=digest(BODY),
        body_bytes=len(BODY),
        sequences=4,
        tokens=12,
    ),
    WORKER,
)

DECIDED = Contents(commits=(knows(COMMIT).digest,), term=1, head=knows(GENESIS).digest)
FINAL = Contents(certified=(COMMIT.digest,))
BOOK = PageBook(MANIFEST, VALIDATORS, {1: DECIDED, 5: FINAL})


def encoding() -> Encoding:
    return Encoding(
        base_version=0,
        base=MANIFEST.genesis_policy,
        index=digest(INDEX),
        index_bytes=len(INDEX),
        total_bytes=len(FILE),
    )


def encodings() -> dict[str, bytes]:
    """Return two files of tensors, and encodings of the second, alone and against the first."""
    rng = np.random.default_rng(1)
    few = rng.integers(0x3A00, 0x3D00, 600, dtype=np.uint16)
    many = rng.integers(0, 1 << 32, 100, dtype=np.uint32)
    sizes = rng.choice([1, 1, 1, 2, 3, 5, 9, 700], 600)
    moved = np.where(rng.random(600) < 0.2, rng.choice([-1, 1], 600) * sizes, 0)
    step = rng.integers(-1 << 20, 1 << 20, 100)
    rarely = np.where(rng.random(600) < 0.04, rng.choice([-1, 1], 600), 0)
    first = file_of({"few": few, "many": many, "rare": few, "same": few[:50]})
    second = file_of(
        {
            "few": few + moved.astype(np.uint16),
            "many": many + step.astype(np.uint32),
            "rare": few + rarely.astype(np.uint16),
            "same": few[:50],
        }
    )
    sources = [
        stream.source_of(lambda at, length, file=file: file[at : at + length], len(file))
        for file in (first, second)
    ]
    base = stream.Base(digest(b"first"), sources[0])
    return {
        "first": first,
        "second": second,
        "full": b"".join(stream.encode(sources[1], None, 1024)),
        "patch": b"".join(stream.encode(sources[1], base, 1024)),
    }


def replica() -> Replica:
    """Return a replica in which the commit is checked."""
    state = Replica(MANIFEST, verify)
    BOOK.show(state, 2)
    for signed in (*(record(one, "validator") for one in VALIDATORS), GENESIS, COMMIT):
        assert state.receive(signed.envelope, now(0)).result is ValidationResult.ACCEPT
    return state


def verdicts() -> list[Signed[Verdict]]:
    """Return the verdicts of the first committee, by rank."""
    committee = replica().verdicts.committee(COMMIT)
    assert committee is not None
    signers = {one.peer_id: one for one in VALIDATORS}
    verdict = Verdict(
        commit=COMMIT.digest,
        page=committee.page.digest,
        nonce=digest(b"nonce"),
        accept=True,
        reason="accepted",
        witness=(-(2**53), -21_337_000_001, -5, 0, -1, -300, -70_000, -(10**9)),
        replays=(0, 31, 255, 256, 65_536, 2**32, 1, 2),
        chunks=3,
        means=(5, -7, 0, 0, 0, 0, 0, 10**9),
        extremes=(0, 2**53, 1, 300, 0),
    )
    return [sealed(verdict, signers[peer]) for peer in committee.first]


def evidence() -> Signed[Evidence]:
    """Return evidence that the last genesis validator equivocated."""
    equivocator = VALIDATORS[-1]
    accepting = verdicts()[0].message
    nothing = {"chunks": 0, "means": (), "extremes": (), "witness": (), "replays": ()}
    rejecting = Verdict(
        **{**accepting.model_dump(), **nothing, "accept": False, "reason": "format"}
    )
    message = Evidence(
        commit=COMMIT.envelope,
        first=sealed(accepting, equivocator).envelope,
        second=sealed(rejecting, equivocator).envelope,
    )
    return sealed(message, VALIDATORS[0])


def objections() -> list[Signed[Objection]]:
    """Return the statements of two validators that the commit is false."""
    message = Objection(commit=COMMIT.digest, page=BOOK.page(7).digest, reason="computation")
    return [sealed(message, one) for one in VALIDATORS[-2:]]


def overturn() -> Signed[Overturn]:
    """Return an overturn with these objections."""
    made = objections()
    fields = made[0].message.model_dump()
    message = Overturn(**fields, members=0b101, signatures=tuple(map(signature_of, made)))
    return sealed(message, VALIDATORS[-1])


ROUND_PLAN = sealed(
    RoundPlan(
        parent=GENESIS.digest,
        term=0,
        batch=(COMMIT.digest,),
        page=digest(b"page"),
        omitted=(digest(b"commit"),),
        trainers=(0,),
        planned_at=round(now(1) * 1000),
    ),
    TRAINER,
)

ROUND_RESULT = sealed(
    RoundResult(
        plan=ROUND_PLAN.digest,
        difference=digest(b"difference"),
        index=digest(INDEX),
        index_bytes=len(INDEX),
        total_bytes=len(FILE),
    ),
    TRAINER,
)


def version_of_round() -> Signed[CheckpointManifest]:
    """Return a version of this round; the run has no rounds, so no node of it accepts one."""
    plan, result = ROUND_PLAN.message, ROUND_RESULT.message
    contribution = Contribution(
        trainer=0, signature=signature_of(ROUND_RESULT), **result.model_dump(exclude={"plan"})
    )
    message = CheckpointManifest(
        version=1,
        policy=digest(b"policy 1"),
        index=digest(INDEX),
        index_bytes=len(INDEX),
        total_bytes=len(FILE),
        round=TrainingRound(
            planned_at=plan.planned_at, trainers=plan.trainers, contributions=(contribution,)
        ),
        created_at=round(now(2) * 1000),
        **plan.model_dump(exclude={"planned_at", "trainers"}),
    )
    return sealed(message, TRAINER)


def messages() -> dict[str, Signed[Any]]:
    """Return the messages by kind, in an order that a node accepts."""
    agreeing = verdicts()
    certificate = Certificate(
        commit=COMMIT.digest,
        page=BOOK.page(2).digest,
        escalated=False,
        accepted=True,
        verdicts=tuple(verdict.envelope for verdict in agreeing),
    )
    first = next(one for one in VALIDATORS if one.peer_id == agreeing[0].signer)
    every = [
        record(VALIDATORS[0], "validator"),
        COMMIT,
        BOOK.page(1),
        BOOK.votes(1)[0],
        BOOK.reveals(2)[0],
        sealed(seal_of(agreeing[0].message, agreeing[0].signer), first),
        agreeing[0],
        sealed(certificate, first),
        objections()[0],
        overturn(),
        evidence(),
        sealed(
            CheckpointManifest(
                version=1,
                term=0,
                parent=GENESIS.digest,
                policy=digest(b"policy 1"),
                index=digest(INDEX),
                index_bytes=len(INDEX),
                total_bytes=len(FILE),
                encodings=(encoding(),),
                batch=(COMMIT.digest,),
                page=digest(b"page"),
                omitted=(digest(b"commit"),),
                ranks=8,
                reward_mean=500_000,
                created_at=round(now(2) * 1000),
            ),
            TRAINER,
        ),
        ROUND_PLAN,
        ROUND_RESULT,
        sealed(StepReport(manifest=GENESIS.digest, policy=digest(b"policy 1")), TRAINER),
        sealed(Invite(key=bytes([1]) * 32, number=0, epoch=0, until=9), CREATOR),
    ]
    return {signed.message.kind: signed for signed in every}
