"""Admission proofs of keys that the genesis does not name.

Keys are free. Under the rule ``open`` a key costs work (argon2id, RFC 9106: it needs memory, which
is expensive wherever hashing is cheap). Under ``invite`` it needs an invite by a key that the
manifest trusts; ``allowlist`` names the workers. Each of the key's records carries the proof, which
is dated: work is done over the hash of its epoch, an invite states its epoch.
``protocol.membership.admission`` covers backdated proofs.
"""

from collections.abc import Iterable

from protocol.core.crypto import digest, memory_hard
from protocol.core.types import PeerId, RunId
from protocol.run.manifest import epoch_hash
from protocol.run.sections import AdmissionSection

WORK_BYTES = 16
"""A proof of work: its epoch and a nonce, 8 bytes each, big-endian."""


def work_proof(epoch: int, nonce: int) -> bytes:
    """Return the proof of an epoch and a nonce."""
    return epoch.to_bytes(8, "big") + nonce.to_bytes(8, "big")


def work_epoch(proof: bytes) -> int | None:
    """Return the epoch of a proof of work; None if it has another length."""
    return int.from_bytes(proof[:8], "big") if len(proof) == WORK_BYTES else None


def is_solved(rules: AdmissionSection, run_id: RunId, peer: PeerId, proof: bytes) -> bool:
    """Return whether a proof of ``WORK_BYTES`` solves the work for this run, key and epoch."""
    if not rules.work_bits:
        return True
    epoch = int.from_bytes(proof[:8], "big")
    salt = digest(
        b"prime-node/admission" + run_id + epoch_hash(run_id, epoch) + peer.encode() + proof[:8]
    )
    hashed = memory_hard(proof[8:], salt, kib=rules.work_kib, passes=rules.work_passes)
    return int.from_bytes(hashed, "big") >> (8 * len(hashed) - rules.work_bits) == 0


def solve(
    rules: AdmissionSection, run_id: RunId, peer: PeerId, epoch: int, nonces: Iterable[int]
) -> bytes | None:
    """Return the proof of the first nonce that solves the work, or None.

    All nonces are equally likely: starting again in each epoch loses nothing.
    """
    proofs = (work_proof(epoch, nonce) for nonce in nonces)
    return next((proof for proof in proofs if is_solved(rules, run_id, peer, proof)), None)
