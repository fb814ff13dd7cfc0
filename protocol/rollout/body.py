"""Body of a rollout: the content behind a commit's digest.

Prompts and seeds are not in it: they follow from the assignment. Tokens are little-endian int32,
log-probabilities little-endian float32, rewards millionths. A reward is the task's score minus a
penalty for the distance to the assigned length (INTELLECT-2, arXiv 2505.07291). It may be negative:
far from the target the penalty still ranks the sequences of a group.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.core.codec import decode, encode
from protocol.core.crypto import digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest
from protocol.messages import RolloutCommit
from protocol.run.manifest import RunManifest
from protocol.run.recipe import SamplingSection

REWARD_SCALE = 1_000_000
"""Maximum reward of a sequence, in millionths."""


@dataclass(frozen=True, slots=True)
class RolloutSequence:
    """One sequence with its worker's claims."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: int
    """Millionths."""
    proofs: tuple[bytes, ...]


def reward_of(
    sampling: SamplingSection, score: float, tokens: int, length_target: int | None
) -> int:
    """Return ``score - penalty * |tokens - target|`` in millionths; ``score`` is from 0 to 1."""
    distance = 0 if length_target is None else abs(tokens - length_target)
    return round((score - sampling.length_penalty * distance) * REWARD_SCALE)


def reward_min(sampling: SamplingSection) -> int:
    """Return the minimum reward of a sequence of this run, in millionths."""
    lengths = (1, sampling.tokens_max)
    targets: tuple[int | None, ...] = sampling.length_targets or (None,)
    return min(reward_of(sampling, 0.0, n, target) for n in lengths for target in targets)


def encode_body(sequences: Sequence[RolloutSequence]) -> bytes:
    """Return the canonical bytes of a body."""
    return encode(
        [
            {
                "logprobs": struct.pack(f"<{len(item.logprobs)}f", *item.logprobs),
                "proofs": list(item.proofs),
                "reward": item.reward,
                "tokens": struct.pack(f"<{len(item.tokens)}i", *item.tokens),
            }
            for item in sequences
        ]
    )


def commit_to(
    body: bytes,
    sequences: Sequence[RolloutSequence],
    checkpoint: Digest,
    slot: int,
    *,
    epoch: int = 0,
    version: int = 0,
    evaluation: bool = False,
) -> RolloutCommit:
    """Return the commit to a body that encodes ``sequences``; the defaults serve trials."""
    return RolloutCommit(
        epoch=epoch,
        version=version,
        checkpoint=checkpoint,
        slot=slot,
        evaluation=evaluation,
        body=digest(body),
        body_bytes=len(body),
        sequences=len(sequences),
        tokens=sum(len(one.tokens) for one in sequences),
    )


def body_bytes_max(manifest: RunManifest) -> int:
    """Return the maximum body size of a valid rollout of this run."""
    sampling, toploc = manifest.sampling, manifest.toploc
    chunks = -(-sampling.tokens_max // toploc.chunk_tokens)
    proof_bytes = 2 + 2 * toploc.top_k * (2 if toploc.precision == "fp32" else 1)
    sequence_bytes = 8 * sampling.tokens_max + chunks * (proof_bytes + 5) + 128
    return sampling.group_size * sampling.prompts_per_rollout * sequence_bytes + 64


def decode_body(data: bytes, manifest: RunManifest) -> list[RolloutSequence] | Fault:
    """Decode a body, and check its shape, counts and numbers against the run's limits."""
    items = decode(data, bytes_max=body_bytes_max(manifest))
    if isinstance(items, Fault):
        return items
    expected = manifest.sampling.group_size * manifest.sampling.prompts_per_rollout
    if not isinstance(items, tuple) or len(items) != expected:
        return Fault(FaultCode.FORMAT, f"not {expected} sequences")
    rewards = range(reward_min(manifest.sampling), REWARD_SCALE + 1)
    sequences: list[RolloutSequence] = []
    for item in items:
        sequence = _decode_sequence(item, manifest.sampling.tokens_max, rewards)
        if isinstance(sequence, Fault):
            return sequence
        sequences.append(sequence)
    return sequences


def _decode_sequence(item: Any, tokens_max: int, rewards: range) -> RolloutSequence | Fault:
    match item:
        case {
            "tokens": bytes(tokens),
            "logprobs": bytes(logprobs),
            "reward": int(reward),
            "proofs": tuple(proofs),
        } if len(item) == 4:
            pass
        case _:
            return Fault(FaultCode.FORMAT, "a sequence has unknown or missing fields")
    count = len(tokens) // 4
    if len(tokens) % 4 or len(logprobs) != len(tokens) or not 1 <= count <= tokens_max:
        return Fault(FaultCode.FORMAT, "invalid token or log-probability count")
    values = struct.unpack(f"<{count}f", logprobs)
    if not all(math.isfinite(value) and value <= 0 for value in values):
        return Fault(FaultCode.FORMAT, "a log-probability is not a finite number <= 0")
    if isinstance(reward, bool) or reward not in rewards:
        return Fault(FaultCode.FORMAT, "the reward is out of range")
    if not all(isinstance(proof, bytes) for proof in proofs):
        return Fault(FaultCode.FORMAT, "a proof is not bytes")
    return RolloutSequence(struct.unpack(f"<{count}i", tokens), values, reward, proofs)
