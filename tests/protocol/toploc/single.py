"""Proofs of one sequence."""

from protocol.toploc.proof import build_proofs_batch, verify_proofs_batch


def build_proofs(states, **shape):
    return build_proofs_batch([states], **shape)[0]


def verify_proofs(states, proofs, **shape):
    return verify_proofs_batch([states], [proofs], **shape)[0]
