"""Progress of training by version, from this trainer's steps and the ledger."""

from collections.abc import Sequence
from statistics import fmean

from node.api.v1.answers import RewardPoint, TrainingPage
from node.context import NodeContext
from protocol.ledger.chain import CheckpointEntry
from roles.runtime.training_steps import STATISTICS, TrainingStep

POINTS_MAX = 400
"""Points of a curve by version; with more versions a point is the mean of several."""

PACE_VERSIONS = 10


def training_page(context: NodeContext) -> TrainingPage:
    """Return the statistics of all known versions."""
    training = context.training
    steps = training.of(context.replica.ledger.chain.checkpoints, context.signer.peer_id)
    width = max(1, -(-len(steps) // POINTS_MAX))
    points = [steps[start : start + width] for start in range(0, len(steps), width)]
    columns = {name: tuple(_mean(point, name) for point in points) for name in STATISTICS}
    return TrainingPage(
        versions=tuple(point[-1].version for point in points),
        columns={name: values for name, values in columns.items() if set(values) != {None}},
        newest=training.newest,
        warning=training.warning,
    )


def _mean(steps: Sequence[TrainingStep], name: str) -> float | None:
    """Return the mean of a statistic's known values, with six significant digits."""
    known = [value for step in steps if (value := getattr(step, name)) is not None]
    return float(f"{fmean(known):.6g}") if known else None


def reward_points(checkpoints: Sequence[CheckpointEntry]) -> tuple[RewardPoint, ...]:
    """Return the reward by version; with many versions a point is the mean of several."""
    learned = checkpoints[1:]  # version 0 is untrained
    width = -(-len(learned) // POINTS_MAX)
    points = []
    for start in range(0, len(learned), max(1, width)):
        messages = [entry.manifest.message for entry in learned[start : start + width]]
        mean = sum(message.reward_mean for message in messages) / len(messages) / 1e6
        last = messages[-1]
        points.append(RewardPoint(last.version, round(mean, 4), last.created_at / 1000))
    return tuple(points)


def seconds_to_go(checkpoints: Sequence[CheckpointEntry], steps: int, now: float) -> float | None:
    """Return the expected time to the last version; None with fewer than three versions."""
    recent = [entry.manifest.message for entry in checkpoints[-PACE_VERSIONS:]]
    if len(recent) < 3:
        return None
    first, last = recent[0], recent[-1]
    if last.version >= steps:
        return 0.0
    pace_seconds = (last.created_at - first.created_at) / 1000 / (last.version - first.version)
    since_last = max(0.0, now - last.created_at / 1000)
    return max(0.0, (steps - last.version) * pace_seconds - min(since_last, pace_seconds))
