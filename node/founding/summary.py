"""A run in words: what it trains, by which rules, and what it asks of those who join."""

from rich.console import Group, RenderableType
from rich.table import Table

from node.founding.needs import Needs
from node.local.run_words import run_words
from node.local.units import bytes_text, duration_text
from protocol.manifest import RunManifest

LINE_BITS_PER_SECOND = 100e6
"""An ordinary line, to tell what a version takes on it."""

FLOPS = 50e12
"""What a GPU of a gaming machine gets out of a model, to tell what a rollout takes; a guess."""


def describe(manifest: RunManifest, needs: Needs) -> RenderableType:
    """Return the manifest and its needs as tables."""
    facts = Table(box=None, show_header=False)
    facts.add_column(style="bold")
    for name, value in run_words(manifest):
        facts.add_row(name, value)
    return Group(facts, "", _needs(needs))


def _needs(needs: Needs) -> Table:
    rollout, step = needs.rollout_flop, needs.step_flop
    table = Table("role", "memory", "disk", "work at most", box=None, header_style="bold")
    rows = (
        ("inference", needs.worker_bytes, needs.disk_bytes, f"{_work(rollout)} a rollout"),
        ("validator", needs.validator_bytes, needs.disk_bytes, f"{_work(rollout)} a rollout"),
        ("trainer", needs.trainer_bytes, needs.trainer_disk_bytes, f"{_work(step)} a version"),
    )
    for role, memory, disk, work in rows:
        table.add_row(role, bytes_text(memory), bytes_text(disk), work)
    seconds = _time(needs.version_bytes * 8 / LINE_BITS_PER_SECOND)
    table.caption = (
        f"{needs.weights:,} weights; a version is {bytes_text(needs.version_bytes)}, {seconds} at "
        f"{LINE_BITS_PER_SECOND / 1e6:g} Mbit/s. Estimates; times at {FLOPS / 1e12:g} TFLOP/s."
    )
    table.caption_justify = "left"
    return table


def _work(flop: int) -> str:
    return f"{flop / 1e12:,.3g} TFLOP, {_time(flop / FLOPS)}"


def _time(seconds: float) -> str:
    return duration_text(seconds) if seconds >= 1 else "under 1 s"
