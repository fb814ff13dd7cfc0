"""What a key that the genesis does not name must show before it takes part.

Keys are free. Under the rule ``open`` one costs work (argon2id, RFC 9106: it takes memory, which is
dear wherever hashing is cheap), under ``invite`` the word of somebody whom the manifest trusts;
``allowlist`` names the workers. A proof stands in each of the key's records. It has a date: work is
done over the beacon of its epoch, an invite says when it was signed;
``protocol.membership.admission`` is about proofs that are dated back.
"""

from collections.abc import Iterable

from protocol.core.crypto import digest, memory_hard
from protocol.core.types import PeerId, RunId
from protocol.run.beacon import beacon
from protocol.run.sections import AdmissionSection

WORK_BYTES = 16
"""A proof of work: its epoch and a nonce, 8 bytes each, big-endian."""


def work_proof(epoch: int, nonce: int) -> bytes:
    """Return the proof that an epoch and a nonce make."""
    return epoch.to_bytes(8, "big") + nonce.to_bytes(8, "big")


def work_epoch(proof: bytes) -> int | None:
    """Return the epoch that a proof of work is of; None when it is none."""
    return int.from_bytes(proof[:8], "big") if len(proof) == WORK_BYTES else None


def is_solved(rules: AdmissionSection, run_id: RunId, peer: PeerId, proof: bytes) -> bool:
    """Return whether a proof of ``WORK_BYTES`` is that of the work for this run, key and epoch."""
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
