"""Assignment of a slot: prompts, sampling seeds and length targets.

A worker has one sequence of training slots for the whole run. The assignment of a slot follows from
(run, worker, slot) alone, so a slot that a worker does not take is lost for good, and the ledger
counts it (``protocol.ledger.slot_window``). A validator recomputes it from the commit.

The first rollouts of a worker with an evaluated version have held-out problems, which follow from
(checkpoint, worker, slot). They are checked and certified like all others, but no version learns
from them.
"""

from dataclasses import dataclass

from blake3 import blake3

from protocol.core.types import Digest, PeerId
from protocol.messages import RolloutCommit
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
    """Return whether a run has an evaluation slot of this number for a version."""
    rule = manifest.evaluation
    if rule is None:
        return False
    return version % rule.every_versions == 0 and slot < rule.rollouts_per_worker


def assign_commit(
    manifest: RunManifest, worker: PeerId, commit: RolloutCommit
) -> list[SequenceAssignment]:
    """Return the sequences of a worker's commit, as ``assign``."""
    evaluates = Digest(commit.checkpoint) if commit.evaluation else None
    return assign(manifest, worker, commit.slot, evaluates)


def assign(
    manifest: RunManifest, worker: PeerId, slot: int, evaluates: Digest | None = None
) -> list[SequenceAssignment]:
    """Return the sequences of a slot, prompt by prompt, ``group_size`` for each.

    ``evaluates`` is the digest of the signed checkpoint manifest that an evaluation slot evaluates;
    None for a training slot.
    """
    sampling = manifest.sampling
    first_seed = 0 if evaluates is None else HELD_OUT_SEED
    domain = b"prime-node/assignment" if evaluates is None else b"prime-node/evaluation"
    root = blake3(domain + manifest.run_id + (evaluates or b""))
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
