"""Plots of a report as PNG bytes; matplotlib is imported for the first one."""

import io
import math
from collections.abc import Callable
from typing import Any

from simulations.metrics.series import Series

BLUE, PALE, ORANGE, INK, GRID = "#1f7a8c", "#9cc9d1", "#e07a5f", "#22333b", "#d9dee2"
FAULT, CALM = "#c0271f", "#1f4fbf"
"""Colours of event lines; no curve uses them."""

SIZE_INCHES = (8.0, 3.6)
DPI = 130
HEADROOM = 1.25
"""Axis range above the highest point, for the legend."""

MARKS_SHOWN_MAX = 40
"""More faults than this would cover the plot."""

Draw = Callable[[Any, Series], None]


def draw_all(series: Series) -> dict[str, bytes]:
    """Return every plot by name, in the order of a report."""
    return {name: _png(draw, series) for name, draw in PICTURES.items()}


def _png(draw: Draw, series: Series) -> bytes:
    from matplotlib import rc_context  # noqa: PLC0415 - a second of import, for reports only
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    style: Any = {
        "axes.edgecolor": GRID,
        "axes.labelcolor": INK,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 11,
        "font.size": 9,
        "grid.color": GRID,
        "legend.frameon": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with rc_context(style):
        figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
        draw(figure, series)
        buffer = io.BytesIO()
        # Without the writer's date and version equal runs give equal files.
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _axes(figure: Any, title: str, x: str, y: str) -> Any:
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def _mark(axes: Any, series: Series) -> None:
    """Mark the faults and events of the swarm."""
    for at, what in series.marks[:MARKS_SHOWN_MAX]:
        colour = CALM if what == "calm" else FAULT
        axes.axvline(at, color=colour, linewidth=1.3, linestyle="--", zorder=3)


def _empty(axes: Any, why: str) -> None:
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color="#7b8a91")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def draw_progress(figure: Any, series: Series) -> None:
    """Draw rollouts and reward over time."""
    axes = _axes(figure, "Rollouts and reward", "virtual seconds", "rollouts")
    if not series.moments:
        _empty(axes, "the run ended within its first epoch")
        return
    times = [moment.at for moment in series.moments]
    axes.plot(times, [moment.committed for moment in series.moments], color=PALE, label="committed")
    axes.plot(times, [moment.certified for moment in series.moments], color=BLUE, label="certified")
    axes.set_ylim(bottom=0)
    _mark(axes, series)
    axes.legend(loc="upper left")
    reward = axes.twinx()
    versions = list(series.versions.values())
    points = [(version.at, version.reward) for version in versions]
    reward.plot(*zip(*points, strict=True) if points else ([], []), color=ORANGE, linewidth=1)
    reward.set_ylim(min([0.0, *(version.reward for version in versions)]), 1.03)
    reward.set_ylabel("mean reward of a batch", color=ORANGE)
    reward.spines["right"].set_visible(True)


def draw_members(figure: Any, series: Series) -> None:
    """Draw the number of live nodes, and of live nodes in the nodes' views."""
    axes = _axes(figure, "Members and views", "virtual seconds", "nodes")
    if not series.moments:
        _empty(axes, "the run ended within its first epoch")
        return
    times = [moment.at for moment in series.moments]
    lowest = [moment.view_min for moment in series.moments]
    highest = [moment.view_max for moment in series.moments]
    axes.fill_between(times, lowest, highest, color=PALE, alpha=0.5, label="views, min to max")
    medians = [moment.view_median for moment in series.moments]
    axes.plot(times, medians, color=BLUE, label="median view")
    live = [moment.live for moment in series.moments]
    axes.step(times, live, color=INK, linewidth=1, where="post", label="live")
    axes.set_ylim(bottom=0)
    _mark(axes, series)
    axes.legend(loc="lower right")


def draw_makespans(figure: Any, series: Series) -> None:
    """Draw each version's time to the last node, and the bound of the links."""
    axes = _axes(figure, "Weights: time to the last live node", "policy version", "seconds")
    reached = [spread for spread in series.makespans if math.isfinite(spread.seconds)]
    if not reached:
        _empty(axes, "no version reached every node")
        return
    versions = [spread.version for spread in reached]
    ideals = [spread.ideal_seconds for spread in reached]
    seconds = [spread.seconds for spread in reached]
    axes.scatter(versions, seconds, s=14, color=BLUE, label="makespan")
    if any(ideals):
        axes.plot(versions, ideals, color=ORANGE, linewidth=1.2, label="bound of the links")
    stuck = [spread.version for spread in series.makespans if math.isinf(spread.seconds)]
    if stuck:
        axes.scatter(stuck, [0] * len(stuck), marker="x", color=ORANGE, label="incomplete")
    axes.set_ylim(0, HEADROOM * max(*ideals, *seconds))
    axes.legend(loc="upper right")


def draw_coverage(figure: Any, series: Series) -> None:
    """Draw the share of (message, node) pairs delivered by gossip within a time."""
    axes = _axes(figure, "Gossip coverage", "seconds since publication", "share of nodes")
    curve = series.delays.curve()
    if not curve:
        _empty(axes, "nothing was gossiped")
        return
    axes.plot(*zip(*curve, strict=True), color=BLUE)
    for share, colour in ((0.5, PALE), (0.99, ORANGE)):
        at = series.delays.quantile(share)
        if math.isfinite(at):
            axes.axvline(at, color=colour, linestyle=":", label=f"{share:.0%} within {at:.3g} s")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_ylim(0, 1.02)
    axes.legend(loc="lower right")


def draw_lag(figure: Any, series: Series) -> None:
    """Draw the age of the policies whose rollouts a version learned from."""
    axes = _axes(figure, "Policy lag", "policy version", "versions behind")
    versions = list(series.versions.values())
    if not versions:
        _empty(axes, "no version was published")
        return
    numbers = [version.version for version in versions]
    means = [version.lag_mean for version in versions]
    oldest = [version.lag_max for version in versions]
    axes.plot(numbers, means, color=BLUE, label="mean of a batch")
    axes.step(numbers, oldest, color=ORANGE, linewidth=1, where="mid", label="oldest of a batch")
    axes.set_ylim(0, HEADROOM * max(1, *oldest))
    axes.legend(loc="upper right")


PICTURES: dict[str, Draw] = {
    "progress": draw_progress,
    "members": draw_members,
    "weights": draw_makespans,
    "gossip": draw_coverage,
    "lag": draw_lag,
}
