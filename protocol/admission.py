"""What a key that the genesis does not name must show before it takes part.

Keys are free. Under the rule ``open`` one costs work (argon2id, RFC 9106: it takes memory, which is
dear wherever hashing is cheap), under ``invite`` the word of somebody whom the manifest trusts;
``allowlist`` names the workers. A proof stands in each of the key's records. It has a date: work is
done over the beacon of its epoch, an invite says when it was signed; ``protocol.admitted`` is about
proofs that are dated back.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from protocol.beacon import beacon
from protocol.crypto import digest, memory_hard, public_key_from_peer_id
from protocol.section import Section
from protocol.types import PeerId, RunId

WORK_BYTES = 16
"""A proof of work: its epoch and a nonce, 8 bytes each, big-endian."""

WORK_KIB_PASSES_MAX = 8192
"""Memory times passes: a check is made in the event loop, and takes 0.4 to 1.4 ms for each 1024."""

INVITERS_MAX = 64
QUOTA_MAX = 1000
"""Of one member: every node remembers the numbers of all invites that it has seen."""

Epochs = Annotated[int, Field(ge=0, le=2**31)]


class AdmissionSection(Section):
    """Admission of keys that the genesis does not name."""

    rule: Literal["open", "invite", "allowlist"]
    """Condition for a key that the run does not name: proof of work, an invitation, or a list."""
    workers: tuple[str, ...] = ()
    """Peer ids of the workers, under ``allowlist``. Anybody may be a relay."""
    work_bits: Annotated[int, Field(ge=0, le=40)] = 0
    """Zero bits at the beginning of the hash, under ``open``; each doubles the work, 0: none."""
    work_kib: Annotated[int, Field(ge=8, le=WORK_KIB_PASSES_MAX)] = 1024
    """Memory of one hash in KiB."""
    work_passes: Annotated[int, Field(ge=1, le=16)] = 1
    """Passes of one hash over its memory; times ``work_kib`` at most 8192."""
    inviters: Annotated[
        dict[str, Annotated[int, Field(ge=1, le=QUOTA_MAX)]], Field(max_length=INVITERS_MAX)
    ] = Field(default_factory=dict)
    """Peer ids that may invite beside the creator, under ``invite``, and how many keys each."""
    probation_epochs: Epochs = 0
    """Epochs between the admission of a key and the first version that it may work on; 0: none."""
    settled_epochs: Epochs = 0
    """Epochs after its admission from which a key may work on any version.

    Above ``probation_epochs``, unless that is 0. Without it a run whose keys are all new stops.
    """

    @property
    def asks_proof(self) -> bool:
        """Whether the records of keys that are not of the genesis hold a proof."""
        asks = self.work_bits > 0 or self.probation_epochs > 0
        return self.rule == "invite" or (self.rule == "open" and asks)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.work_kib * self.work_passes > WORK_KIB_PASSES_MAX:
            raise ValueError(f"work_kib times work_passes must not exceed {WORK_KIB_PASSES_MAX}")
        if self.rule != "open" and self.work_bits:
            raise ValueError("work_bits is for the rule 'open'")
        if self.rule != "invite" and self.inviters:
            raise ValueError("inviters is for the rule 'invite'")
        if self.rule != "allowlist" and self.workers:
            raise ValueError("workers is for the rule 'allowlist'")
        if self.rule == "allowlist" and self.probation_epochs:
            raise ValueError("the manifest is older than any version: no probation for its list")
        if self.probation_epochs and self.settled_epochs <= self.probation_epochs:
            raise ValueError("settled_epochs must exceed probation_epochs")
        for key in self.inviters:
            if public_key_from_peer_id(key) is None:
                raise ValueError(f"{key!r} is not an Ed25519 peer id")
        return self


def work_proof(epoch: int, nonce: int) -> bytes:
    """Return the proof that an epoch and a nonce make."""
    return epoch.to_bytes(8, "big") + nonce.to_bytes(8, "big")


def work_epoch(proof: bytes) -> int | None:
    """Return the epoch that a proof of work is of; None when it is none."""
    return int.from_bytes(proof[:8], "big") if len(proof) == WORK_BYTES else None


def is_solved(rules: AdmissionSection, run_id: RunId, peer: PeerId, proof: bytes) -> bool:
    """Tell whether a proof of ``WORK_BYTES`` is that of the work for this run, key and epoch."""
    if not rules.work_bits:
        return True
    epoch = int.from_bytes(proof[:8], "big")
    salt = digest(
        b"prime-node/admission" + run_id + beacon(run_id, epoch) + peer.encode() + proof[:8]
    )
    hashed = memory_hard(proof[8:], salt, kib=rules.work_kib, passes=rules.work_passes)
    return int.from_bytes(hashed, "big") >> (8 * len(hashed) - rules.work_bits) == 0


def solve(
    rules: AdmissionSection, run_id: RunId, peer: PeerId, epoch: int, nonces: Iterable[int]
) -> bytes | None:
    """Return the proof of the first nonce that solves the work; None when none of them does.

    Every nonce is as good as every other one: whoever begins anew in each epoch loses nothing.
    """
    proofs = (work_proof(epoch, nonce) for nonce in nonces)
    return next((proof for proof in proofs if is_solved(rules, run_id, peer, proof)), None)
