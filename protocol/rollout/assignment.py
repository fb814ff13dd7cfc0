"""Assignment of a slot: prompts, sampling seeds and length targets.

All of it follows from (version, checkpoint, worker, slot). No worker can choose an easy problem, a
lucky seed or a convenient length, and a validator recomputes it from the commit alone. Slots are
used in order (``ledger``), so a worker cannot skip to a better one.

The first slots with an evaluated version have held-out problems. Their rollouts are checked and
certified like all others, but no version learns from them.
"""

from dataclasses import dataclass

from blake3 import blake3

from protocol.core.types import Digest, PeerId
from protocol.run.manifest import RunManifest

HELD_OUT_SEED = 1 << 64
"""First seed of held-out problems; training draws 64-bit seeds."""


@dataclass(frozen=True, slots=True)
class SequenceAssignment:
    """Problem, sampling noise and target length of one sequence."""

    group: int
    problem_seed: int
    noise_seed: int
    length_target: int | None


def is_evaluation(manifest: RunManifest, version: int, slot: int) -> bool:
    """Return whether a slot evaluates its version on held-out problems; no version learns from it.

    These are the first slots of each worker with a version that the run evaluates.
    """
    rule = manifest.evaluation
    if rule is None:
        return False
    return version % rule.every_versions == 0 and slot < rule.rollouts_per_worker


def assign(
    manifest: RunManifest, checkpoint: Digest, worker: PeerId, slot: int, version: int
) -> list[SequenceAssignment]:
    """Return the sequences of a slot, prompt by prompt, ``group_size`` for each.

    ``checkpoint`` is the digest of the signed checkpoint manifest, which differs between versions
    even when the weights do not; ``version`` is its number.
    """
    sampling = manifest.sampling
    first_seed = HELD_OUT_SEED if is_evaluation(manifest, version, slot) else 0
    root = blake3(b"prime-node/assignment" + manifest.run_id + checkpoint)
    root.update(worker.encode() + b"/" + slot.to_bytes(8, "big"))
    targets = sampling.length_targets
    sequences: list[SequenceAssignment] = []
    for group in range(sampling.prompts_per_rollout):
        seed = root.digest() + group.to_bytes(4, "big")
        stream = blake3(seed).digest(16 + 8 * sampling.group_size)
        words = [int.from_bytes(stream[at : at + 8], "big") for at in range(0, len(stream), 8)]
        target = targets[words[1] % len(targets)] if targets else None
        sequences += [
            SequenceAssignment(group, first_seed + words[0], noise_seed, target)
            for noise_seed in words[2:]
        ]
    return sequences
