"""Signed messages of a small run, and mutated ones signed again by a permitted key."""

from random import Random
from typing import Any

from protocol.core.codec import decode, encode
from protocol.core.crypto import Identity, signing_bytes, verify
from protocol.core.faults import Fault
from protocol.messages import (
    ENVELOPE_BYTES_MAX,
    Certificate,
    CheckpointManifest,
    Evidence,
    Invite,
    Message,
    NodeRecord,
    Objection,
    Overturn,
    Page,
    PageVote,
    Reveal,
    RolloutCommit,
    RoundPlan,
    RoundResult,
    Signed,
    StepReport,
    Verdict,
    VerdictSeal,
    open_envelope,
    seal,
    signature_of,
)
from tests.fuzz.mutation import Values
from tests.fuzz.target import Decoder, Target
from tests.vectors import made
from tests.worlds.messages import World, identity, round_of, run_manifest

KINDS: tuple[type[Message], ...] = (
    NodeRecord,
    Invite,
    RolloutCommit,
    Verdict,
    VerdictSeal,
    Certificate,
    Objection,
    Overturn,
    Evidence,
    Page,
    PageVote,
    Reveal,
    CheckpointManifest,
    RoundPlan,
    RoundResult,
    StepReport,
)
"""Kinds of messages with their own envelope."""

PARTS = {
    "hardware": "node-record",
    "encoding": "checkpoint-manifest",
    "training-round": "checkpoint-manifest",
    "contribution": "checkpoint-manifest",
}
"""Messages that are parts of another one."""

UNTRUSTED = tuple(identity(f"untrusted {number}") for number in range(64))


class Correspondence:
    """Messages of a run, in an order in which a replica accepts them."""

    def __init__(self, **sections: dict[str, Any]) -> None:
        self.world = world = World(run_manifest(trainers=2, **sections))
        self.run_id = world.run_id
        self.signers: list[Identity] = [
            *(*world.trainers, *world.validators, *world.workers),
            *(identity("creator"), *UNTRUSTED[:8]),
        ]
        self.by_peer = {one.peer_id: one for one in (*self.signers, *UNTRUSTED)}
        self.messages: list[Signed[Any]] = [*self._records(), *self._chain(), *self._invites()]
        known: list[Any] = [one.digest for one in self.messages]
        known += [one.envelope for one in self.messages if len(one.envelope) < 1024]
        known += [one.public_key for one in self.signers]
        known += [self.world.manifest.genesis_policy, b"", bytes(32)]
        known += [0, 1, 2, 3, 5, 6, 40, round(world.at(0) * 1000), round(world.at(2) * 1000)]
        self.values = Values(known)
        self.values.inner = self._inner

    def _records(self) -> list[Signed[Any]]:
        world = self.world
        roles = {"validator": world.validators, "trainer": world.trainers}
        records = [
            world.record(one, (role,), epoch, joined_at=0)
            for epoch in (0, 2)
            for role, members in roles.items()
            for one in members
        ]
        witnessed = tuple(one.public_key for one in world.validators)
        spoken = {"witnessed": witnessed, "upload_classes": (40,) * len(witnessed)}
        records += [world.record(one, ("inference", "relay"), **spoken) for one in world.workers]
        records += [world.record(one, ("relay",), leaving=True) for one in UNTRUSTED[:2]]
        return records

    def _chain(self) -> list[Signed[Any]]:
        """Return versions, rollouts and their verdicts."""
        world, said = self.world, []
        genesis = world.genesis()
        commits = [one for worker in world.workers for one in world.chain(worker, 3)]
        certificates = [world.certificate(commit) for commit in commits[:4]]
        certificates.append(world.certificate(commits[4], accepted=False, escalated=True))
        said += [genesis, *commits]
        for epoch in (1, 2, 3):
            said += [*world.book.reveals(epoch)[:3], world.book.page(epoch)]
            said += world.book.votes(epoch)
        said += [
            world.verdict(validator, commit, accept=accept, means=(5, -7), extremes=(0, 2**53))
            for commit in commits[:3]
            for validator in world.validators[:3]
            for accept in (True, False)
        ]
        said += [
            world.verdict_seal(world.verdict(validator, commit))
            for commit in commits[:3]
            for validator in world.validators[2:4]
        ]
        said += [*certificates, world.evidence(world.validators[-1], commits[0])]
        said += self._objections(commits[0])
        encodings = (made.encoding(),)
        batch = tuple(commit.digest for commit in commits[:2])
        first = world.checkpoint(genesis, batch=batch)
        second = world.checkpoint(first, encodings=encodings, batch=(commits[2].digest,))
        rival = world.checkpoint(genesis, 1, term=1, batch=batch)
        reports = [
            self.sealed(StepReport(manifest=one.digest, policy=one.message.policy), trainer)
            for one in (first, second)
            for trainer in world.trainers
        ]
        return [*said, first, second, rival, *reports, *self._round(genesis)]

    def _round(self, parent: Signed[CheckpointManifest]) -> list[Signed[Any]]:
        """Return a plan, its results, and their version, which a run without rounds refuses."""
        world, places = self.world, tuple(range(len(self.world.trainers)))
        planned = world.round_plan(parent, places)
        results = [world.round_result(planned, place) for place in places]
        made = round_of(planned, dict(zip(places, results, strict=True)))
        return [planned, *results, world.checkpoint(parent, round=made)]

    def _objections(self, commit: Signed[Any]) -> list[Signed[Any]]:
        page, members = self.world.book.page(3).digest, self.world.validators[:3]
        message = Objection(commit=commit.digest, page=page, reason="computation")
        objections = [self.sealed(message, one) for one in members]
        signatures = tuple(map(signature_of, objections))
        overturn = Overturn(**message.model_dump(), members=0b111, signatures=signatures)
        return [*objections, self.sealed(overturn, members[0])]

    def _invites(self) -> list[Signed[Any]]:
        invites = [
            self.sealed(Invite(key=one.public_key, number=number, epoch=0, until=9), inviter)
            for inviter in (identity("creator"), self.world.validators[0])
            for number, one in enumerate(UNTRUSTED[:4])
        ]
        return [
            *invites,
            *(
                self.world.record(one, ("inference",), admission=invite.envelope)
                for one, invite in zip(UNTRUSTED[:4], invites, strict=False)
            ),
        ]

    def sealed(self, message: Message, signer: Identity) -> Signed[Any]:
        return seal(message, self.run_id, signer)

    def of(self, kind: type[Message]) -> list[Signed[Any]]:
        return [one for one in self.messages if one.message.kind == kind.kind]

    def signed(self, kind: str, payload: bytes, signer: Identity) -> bytes:
        """Return an envelope around arbitrary bytes."""
        signature = signer.sign(signing_bytes(kind, self.run_id, payload))
        fields = {"kind": kind, "payload": payload, "signature": signature}
        return encode({**fields, "signer": signer.peer_id})

    def remade(self, one: Signed[Any], rng: Random) -> bytes:
        """Return a message with other values, signed by its key or sometimes by another."""
        values = self.values.changed(one.message.model_dump(), rng)
        signer = self.by_peer[one.signer]
        if rng.random() < 0.15:
            signer = rng.choice(self.signers)
        return self.signed(one.message.kind, _encoded(values), signer)

    def _inner(self, data: bytes, rng: Random) -> bytes:
        """Mutate an envelope within a message, and sign it again."""
        fields = decode(data, bytes_max=ENVELOPE_BYTES_MAX)
        fields = fields if isinstance(fields, dict) else {}
        name, payload = fields.get("signer"), fields.get("payload")
        signer = self.by_peer.get(name) if isinstance(name, str) else None
        if signer is None or not isinstance(payload, bytes) or rng.random() < 0.2:
            other = self.values.changed(fields or data, rng)
            return other if isinstance(other, bytes) else _encoded(other)
        inner = decode(payload, bytes_max=ENVELOPE_BYTES_MAX)
        changed = Values([0, 1, bytes(32)]).changed(inner, rng)
        return self.signed(str(fields.get("kind"))[:31], _encoded(changed), signer)


def _encoded(value: Any) -> bytes:
    """Return the canonical bytes; empty for a value without an encoding."""
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError):
        return encode(None)


def _opener(kind: type[Message]) -> Decoder:
    post = Correspondence()
    messages = post.of(kind)

    def read(data: bytes) -> bool:
        return not isinstance(open_envelope(data, kind, post.run_id, verify), Fault)

    return Decoder(
        [one.envelope for one in messages],
        read,
        remake=[lambda rng: post.remade(rng.choice(messages), rng)],
    )


def _covers(kind: type[Message]) -> tuple[str, ...]:
    parts = [part for part, whole in PARTS.items() if whole == kind.kind]
    return tuple(f"message:{name}" for name in (kind.kind, *parts))


def _starter(kind: type[Message]) -> Any:
    return lambda: _opener(kind)


TARGETS = tuple(Target(f"envelope-{kind.kind}", _starter(kind), _covers(kind)) for kind in KINDS)
