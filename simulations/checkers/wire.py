"""Decoder of stored messages without ``protocol``: manifests, envelopes, digests, signatures.

An envelope is canonical msgpack of ``kind``, ``payload``, ``signature`` and ``signer``; the payload
is msgpack again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import base58
import msgpack
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_DOMAIN = b"prime-node/2"
_PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Identity multihash and key protobuf before the 32 bytes of an Ed25519 key."""

ENVELOPE_BYTES_MAX = 16 * 1024
VERDICT_BYTES_MAX = 1024


def blake3_digest(data: bytes) -> bytes:
    """Return the 32-byte BLAKE3 digest of ``data``."""
    return blake3(data).digest()


@dataclass(frozen=True, slots=True)
class CreditTerms:
    """Credit of a run: for each token of a rollout, of a check, and of what a version learned."""

    per_token: int
    per_checked_token: int
    per_learned_token: int
    lock_epochs: int
    gap_max: int
    """Gaps in a worker's slots that cost nothing."""
    slash: bool
    reward_rate: float
    """Share of honest rollouts whose rewards differ between machines."""

    @classmethod
    def read(cls, section: dict[str, Any]) -> "CreditTerms":
        """Read the section of a run manifest, which has other keys, too."""
        names = "per_token", "per_checked_token", "per_learned_token", "lock_epochs", "gap_max"
        rate = section.get("reward_disagreement_rate", 1e-3)
        return cls(**{name: section[name] for name in (*names, "slash")}, reward_rate=rate)


@dataclass(frozen=True, slots=True)
class Rules:
    """The fields of a run manifest that checkers need; times in unix seconds."""

    run_id: bytes
    genesis_policy: bytes
    trainers: tuple[str, ...]
    validators: tuple[str, ...]
    created_at: float
    epoch_seconds: float
    record_epochs: int
    refresh_epochs: int
    committee_size: int
    escalated_size: int
    reexamine_share: float
    reexamine_size: int
    expire_epochs: int
    seats_max: int
    revealers: int
    recovery_epochs: int
    era_epochs: int
    credit: "CreditTerms"
    async_level: int
    steps: int
    fanout: int
    gap_sigma: float
    replay_share: float
    """Share of sampled tokens that another honest engine does not sample."""
    evaluation: tuple[int, int] | None
    """Period in versions, and rollouts of each worker in an evaluation."""

    @classmethod
    def read(cls, manifest: bytes) -> "Rules":
        """Read the canonical bytes of a run manifest."""
        values = msgpack.unpackb(manifest, raw=False, use_list=False)
        genesis, epochs, committee = values["genesis"], values["epochs"], values["committee"]
        council, measured = values["council"], values.get("evaluation")
        return cls(
            run_id=blake3_digest(manifest),
            genesis_policy=bytes.fromhex(genesis["policy"]),
            trainers=tuple(genesis["trainers"]),
            validators=tuple(genesis["validators"]),
            created_at=float(genesis["created_at"]),
            epoch_seconds=float(epochs["seconds"]),
            record_epochs=epochs["record_epochs"],
            refresh_epochs=epochs["refresh_epochs"],
            committee_size=committee["size"],
            escalated_size=committee["escalated_size"],
            reexamine_share=committee["reexamine_share"],
            reexamine_size=committee["reexamine_size"],
            expire_epochs=committee["expire_after_epochs"],
            seats_max=council["seats_max"],
            revealers=council["revealers"],
            recovery_epochs=council["recovery_epochs"],
            era_epochs=council["era_epochs"],
            credit=CreditTerms.read(values["credit"]),
            async_level=values["grpo"]["async_level"],
            steps=values["grpo"]["steps"],
            fanout=values["shardcast"]["fanout"],
            gap_sigma=values["toploc"]["gap_sigma"],
            replay_share=values["toploc"]["honest"]["replay_mismatches"]["mean"],
            evaluation=measured and (measured["every_versions"], measured["rollouts_per_worker"]),
        )

    def epoch_at(self, at: float) -> int:
        """Return the epoch of a time; 0 before the genesis."""
        return max(0, int((at - self.created_at) // self.epoch_seconds))

    def epoch_start(self, epoch: int) -> float:
        """Return the start of ``epoch``."""
        return self.created_at + epoch * self.epoch_seconds

    def first_beacon(self) -> bytes:
        """Return the beacon before the first page."""
        return blake3_digest(b"prime-node/beacon" + self.run_id)

    def first_noise_seed(self, worker: str, slot: int, evaluates: bytes = b"") -> int:
        """Return the noise seed of the first sequence in a worker's slot.

        ``evaluates``: the checkpoint that an evaluation slot evaluates.
        """
        domain = b"prime-node/evaluation" if evaluates else b"prime-node/assignment"
        slot_bytes = b"/" + slot.to_bytes(8, "big")
        name = domain + self.run_id + evaluates + worker.encode() + slot_bytes
        words = blake3(blake3_digest(name) + bytes(4)).digest(24)  # problem, target, noise
        return int.from_bytes(words[16:], "big")


@dataclass(slots=True, eq=False)
class Opened:
    """A signed message that a node has stored, and its number of sightings."""

    kind: str
    signer: str
    fields: dict[str, Any]
    digest: bytes
    """Digest of signer, kind, run and payload, by which other messages refer to it."""
    length: int
    well_signed: bool
    first_at: float
    stored_by_author: bool = False
    stores: int = 0

    @property
    def commit(self) -> bytes | None:
        """The commit that this message is or concerns."""
        if self.kind == "rollout-commit":
            return self.digest
        commit = self.fields.get("commit")
        return commit if isinstance(commit, bytes) else None

    def describe(self, name: Callable[[str], str]) -> str:
        """Format it as a line of a causal history; ``name`` shortens a peer id."""
        fields = self.fields
        match self.kind:
            case "rollout-commit":
                what = f"version {fields['version']} slot {fields['slot']} epoch {fields['epoch']}"
            case "verdict":
                what = f"{short(fields['commit'])} {fields['reason']}"
            case "certificate":
                outcome = "accept" if fields["accepted"] else "reject"
                wide = " escalated" if fields["escalated"] else ""
                count = len(fields["verdicts"])
                what = f"{short(fields['commit'])} {outcome}{wide} by {count} verdicts"
            case "checkpoint-manifest":
                what = f"version {fields['version']} term {fields['term']}"
            case "round-plan":
                what = f"term {fields['term']} after {short(fields['parent'])}"
            case "round-result":
                what = f"for {short(fields['plan'])}"
            case "overturn":
                what = f"{short(fields['commit'])} {fields['reason']}"
            case "page":
                what = f"epoch {fields['epoch']} after {short(fields['parent'])}"
            case "page-vote":
                what = f"epoch {fields['epoch']} for {short(fields['page'])}"
            case _:
                what = ""
        return f"{self.kind} {short(self.digest)} of {name(self.signer)} {what}".rstrip()


class Wire:
    """Opens each distinct envelope once."""

    def __init__(self, rules: Rules, *, check_signatures: bool) -> None:
        self._rules = rules
        self._check_signatures = check_signatures
        self._by_envelope: dict[bytes, Opened | None] = {}
        self._by_digest: dict[bytes, Opened] = {}

    def open(self, envelope: bytes, at: float) -> Opened | None:
        """Return the content of an envelope, or None if it is malformed."""
        if envelope not in self._by_envelope:
            self._by_envelope[envelope] = self._open(envelope, at)
        return self._by_envelope[envelope]

    def message(self, digest: bytes) -> Opened | None:
        """Return a message that was opened before."""
        return self._by_digest.get(digest)

    def forget(self, oldest: float) -> None:
        """Forget messages first seen before ``oldest``, except manifests of versions."""
        self._by_envelope = {
            envelope: opened
            for envelope, opened in self._by_envelope.items()
            if opened is not None and _kept(opened, oldest)
        }
        self._by_digest = {
            digest: opened for digest, opened in self._by_digest.items() if _kept(opened, oldest)
        }

    def _open(self, envelope: bytes, at: float) -> Opened | None:
        fields = _unpacked(envelope) or {}
        match fields:
            case {
                "kind": str(kind),
                "payload": bytes(payload),
                "signature": bytes(signature),
                "signer": str(signer),
            } if len(fields) == 4:
                values = _unpacked(payload)
            case _:
                return None
        if values is None:
            return None
        signed = self.signed(kind, payload)
        digest = blake3_digest(self.signed(kind, signer.encode() + payload))
        well_signed = not self._check_signatures or signature_fits(signer, signed, signature)
        known = self._by_digest.get(digest)
        if known is not None and known.well_signed and well_signed:
            return known
        opened = Opened(kind, signer, values, digest, len(envelope), well_signed, at)
        if well_signed:
            self._by_digest[digest] = opened
        return opened

    def signed(self, kind: str, payload: bytes) -> bytes:
        """Return the bytes that the signature of a message covers."""
        name = kind.encode()
        return b"".join((_DOMAIN, bytes([len(name) & 0xFF]), name, self._rules.run_id, payload))


def signature_fits(signer: str, message: bytes, signature: bytes) -> bool:
    """Check an Ed25519 signature by the key inside a libp2p peer id."""
    try:
        Ed25519PublicKey.from_public_bytes(key_of(signer)).verify(signature, message)
    except (ValueError, InvalidSignature):
        return False
    return True


def peer_of(public_key: bytes) -> str:
    """Return the libp2p peer id of an Ed25519 key."""
    return base58.b58encode(_PEER_ID_PREFIX + public_key).decode()


def key_of(peer: str) -> bytes:
    """Return the Ed25519 key of a libp2p peer id."""
    return base58.b58decode(peer)[len(_PEER_ID_PREFIX) :]


def short(digest: bytes) -> str:
    """Return the first digits of a digest, for people."""
    return digest.hex()[:12]


def shown(value: object) -> str:
    """Return a fact of an event as text, digests in hexadecimal."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _kept(opened: Opened, oldest: float) -> bool:
    return opened.first_at >= oldest or opened.kind == "checkpoint-manifest"


def _unpacked(data: bytes) -> dict[str, Any] | None:
    try:
        value = msgpack.unpackb(data, raw=False, use_list=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    return value if isinstance(value, dict) else None
