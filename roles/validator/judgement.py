"""Checks of one rollout body, in ascending order of cost; the model comes last."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from protocol.core.types import PeerId
from protocol.messages import RolloutCommit
from protocol.rollout.assignment import assign_commit
from protocol.rollout.audit import (
    SLASHABLE_REASONS,
    AuditResult,
    Past,
    audited,
    check_claims,
    check_rewards,
    decide,
    read_body,
)
from protocol.rollout.body import RolloutSequence
from protocol.rollout.statistics import Measurement
from protocol.rollout.witness import draw_points, in_draw_order, points_of
from protocol.run.manifest import RunManifest
from roles.ports.engines import Unscorable, VerificationRequest
from roles.runtime.scoring import Task

Measure = Callable[[Sequence[VerificationRequest]], Awaitable[Sequence[Measurement] | None]]
"""Measures claims with the policy of their commit; None when that is not possible now."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Commit and its body."""

    worker: PeerId
    commit: RolloutCommit
    body: bytes
    lot: bytes = b""
    """Beacon and message id of the commit, which draw the audited sequences and the witness points;
    empty: all sequences are audited, and no points are drawn."""


async def judge(
    manifest: RunManifest,
    task: Task,
    judged: Judged,
    past: Callable[[], Past],
    measure: Measure,
) -> AuditResult | Unscorable | None:
    """Return the result of all checks; None when ``measure`` returns None.

    ``past`` is evaluated after each wait, since the ledger changes meanwhile. Returns
    ``Unscorable`` when the task has no score for the body. Raises ``EngineError`` when the engine
    or the task fails.
    """
    commit = judged.commit
    sequences = read_body(manifest, commit, judged.body)
    if isinstance(sequences, AuditResult):
        return sequences
    finding = check_claims(manifest, commit, sequences)
    if finding is not None:
        return finding
    assignments = assign_commit(manifest, judged.worker, commit)
    rewards = await task.rewards(assignments, [item.tokens for item in sequences])
    if isinstance(rewards, Unscorable):
        return rewards
    differing = check_rewards(manifest, sequences, rewards, past())
    if differing is not None and differing.reason in SLASHABLE_REASONS:
        return differing
    chosen = _audited(manifest, judged, sequences)
    prompts = await task.prompts([assignments[index] for index in chosen])
    tokens = [sequences[index].tokens for index in chosen]
    vocabulary_size = manifest.model.vocabulary_size
    points = draw_points(judged.lot, tokens, vocabulary_size) if judged.lot else []
    requests = [
        VerificationRequest(
            prompt,
            assignments[index].noise_seed,
            sequences[index].tokens,
            sequences[index].logprobs,
            sequences[index].proofs,
            points_of(points, place),
        )
        for place, (index, prompt) in enumerate(zip(chosen, prompts, strict=True))
    ]
    measurements = await measure(requests)
    if measurements is None:
        return None
    claims = [one.claim for one in requests]
    found = decide(manifest, measurements, claims, past(), differing)
    if found.sums is None:
        return found
    return replace(found, witness=in_draw_order(points, [one.witness for one in measurements]))


def _audited(
    manifest: RunManifest, judged: Judged, sequences: Sequence[RolloutSequence]
) -> Sequence[int]:
    if not judged.lot:
        return range(len(sequences))
    return audited(manifest, judged.lot, [one.reward for one in sequences])
