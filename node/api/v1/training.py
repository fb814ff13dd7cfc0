"""Training statistics by version, from this trainer's steps and the ledger."""

from collections.abc import Sequence
from statistics import fmean

from node.api.v1.answers import TrainingPage
from node.context import NodeContext
from roles.runtime.training_steps import STATISTICS, TrainingStep

POINTS_MAX = 400
"""Points of a curve by version; with more versions a point is the mean of several."""


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
