"""Report of a run: numbers and series as JSON, plots, and one HTML page without scripts."""

import base64
import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from node.api.contributors import ContributorsPage
from simulations.checkers import Violation
from simulations.metrics.numbers import RunResult
from simulations.metrics.series import Series
from simulations.report.contributors import STYLE, contributors_section
from simulations.report.plots import draw_all

CAPTIONS = {
    "progress": "Rollouts committed and certified, and the mean reward of each version's batch. "
    "Dashed lines: faults (red), their end (blue).",
    "members": "Running nodes, and their number in the nodes' own rosters.",
    "weights": "Time from the publication of a version to the last node that ran throughout, and "
    "the lower bound of the access lines.",
    "gossip": "Share of (message, node) pairs delivered by gossip within a time.",
    "lag": "Lag of a batch's rollouts behind the newest version, in versions.",
}

PERCENT_DIGITS_MAX = 8

_STYLE = """
:root { color-scheme: light; --ink: #22333b; --soft: #61717a; --line: #dde3e7; --blue: #1f7a8c;
  --good: #2a7d4f; --bad: #b3402a; }
* { box-sizing: border-box; }
body { margin: 0; background: #f4f6f7; color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1020px; margin: 0 auto; padding: 36px 20px 72px; }
h1 { font-size: 26px; margin: 0 0 2px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 36px 0 12px; }
p.sub { margin: 0; color: var(--soft); }
code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px;
  overflow-x: auto; margin: 10px 0; }
.verdict { margin: 22px 0; padding: 14px 18px; border-radius: 8px; border-left: 5px solid;
  background: #fff; }
.good { border-color: var(--good); } .bad { border-color: var(--bad); }
.good strong { color: var(--good); } .bad strong { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; }
.tile { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 11px 14px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 12px; }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 8px;
  padding: 10px; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: 13px; padding: 6px 4px 2px; }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid var(--line);
  border-radius: 8px; overflow: hidden; }
td { padding: 6px 14px; border-top: 1px solid var(--line); font-variant-numeric: tabular-nums; }
tr:first-child td { border-top: 0; }
td:first-child { color: var(--soft); width: 50%; }
@media (max-width: 560px) { .pictures { grid-template-columns: 1fr; }
  main { padding: 20px 12px 40px; } td { padding: 6px 10px; } pre { white-space: pre-wrap; } }
@media print { body { background: #fff; } }
"""


def write_report(
    directory: Path,
    result: RunResult,
    series: Series,
    command: str,
    contributors: ContributorsPage | None = None,
) -> Path:
    """Write the report of a run, with the ``command`` that repeats it; return the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures = draw_all(series)
    for name, png in pictures.items():
        (directory / f"{name}.png").write_bytes(png)
    (directory / "result.json").write_text(json.dumps(result.to_json(), indent=2) + "\n")
    (directory / "series.json").write_text(json.dumps(series.to_json()) + "\n")
    page = directory / "index.html"
    page.write_text(render_page(result, series, pictures, command, contributors))
    return page


def render_page(
    result: RunResult,
    series: Series,
    pictures: Mapping[str, bytes],
    command: str,
    contributors: ContributorsPage | None = None,
) -> str:
    """Return the page of one run, with the ``command`` that repeats it."""
    title = f"{result.scenario}, seed {result.seed}"
    sub = (
        f"{result.nodes} nodes · {_duration(result.virtual_s)} of virtual time in "
        f"{_duration(result.wall_s)} · {result.events:,} events"
    )
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}{STYLE}</style></head><body><main>",
            f'<h1>{escape(title)}</h1><p class="sub">{escape(sub)}</p>',
            _verdict(result.violations),
            _tiles(result),
            "<h2>Plots</h2>",
            _pictures(pictures),
            "<h2>Numbers</h2>",
            _table(_rows(result)),
            "" if contributors is None else contributors_section(contributors),
            _marks(series),
            "<h2>Command</h2>",
            f"<pre>{escape(command)}</pre>",
            f'<p class="sub">trace digest <code>{escape(result.trace_digest)}</code></p>',
            "</main></body></html>\n",
        )
    )


def _verdict(violations: tuple[Violation, ...]) -> str:
    if not violations:
        return '<div class="verdict good"><strong>All checks passed.</strong></div>'
    parts = []
    for violation in violations:
        causes = "\n".join(violation.causes)
        parts.append(
            f'<div class="verdict bad"><strong>{escape(violation.rule)}</strong> '
            f"at {violation.at:.3f} s, {escape(violation.node)}: {escape(violation.what)}"
            f"<pre>{escape(causes)}</pre></div>"
        )
    return "\n".join(parts)


def _tiles(result: RunResult) -> str:
    rollouts = result.rollouts
    lost_share = rollouts.lost / rollouts.committed if rollouts.committed else None
    tiles = (
        (f"{rollouts.certified:,}", f"certified of {rollouts.committed:,} rollouts"),
        (_percent(lost_share), "of rollouts lost"),
        (f"{result.versions_published:,}", "versions published"),
        (_percent(result.trainer_idle_share), "trainer idle time"),
        (_number(result.gossip.coverage_p99_s, " s"), "gossip delay, p99"),
        (_number(result.weights.makespan_ratio_p99, "x"), "weights makespan over the bound, p99"),
        (_percent(result.committee_agreement), "committee agreement"),
        (f"{result.certified_false:,}", "false rollouts certified"),
    )
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
            for value, label in tiles
        )
        + "</div>"
    )


def _pictures(pictures: Mapping[str, bytes]) -> str:
    figures = (
        f'<figure><img alt="{escape(name)}" src="data:image/png;base64,'
        f'{base64.b64encode(png).decode()}"><figcaption>{escape(CAPTIONS[name])}</figcaption></figure>'
        for name, png in pictures.items()
    )
    return f'<div class="pictures">{"".join(figures)}</div>'


def _rows(result: RunResult) -> Iterable[tuple[str, str]]:
    rollouts, gossip, weights = result.rollouts, result.gossip, result.weights
    return (
        ("rollouts committed", f"{rollouts.committed:,}"),
        ("rollouts certified", f"{rollouts.certified:,}"),
        ("rollouts rejected", f"{rollouts.rejected:,}"),
        ("rollouts expired", f"{rollouts.expired:,}"),
        ("honest rollouts lost", f"{rollouts.lost:,}"),
        ("false rollouts certified", f"{result.certified_false:,}"),
        ("contradictory certificates", f"{result.contradictory_certificates:,}"),
        ("committee agreement", _percent(result.committee_agreement, 4)),
        ("gossip delay, p50", _number(gossip.coverage_p50_s, " s")),
        ("gossip delay, p99", _number(gossip.coverage_p99_s, " s")),
        ("duplicate copies per message", f"{gossip.duplicates_per_message:.2f}"),
        ("versions on every node", f"{weights.versions:,}"),
        ("makespan over the bound, p50", _number(weights.makespan_ratio_p50, "")),
        ("makespan over the bound, p99", _number(weights.makespan_ratio_p99, "")),
        ("makespan, p50", _number(weights.makespan_seconds_p50, " s")),
        ("makespan beyond the bound, p50, in round trips", _number(weights.round_trips_p50, "")),
        ("minimum of round trips for any file", _number(weights.round_trips_least, "")),
        ("weights received per node", f"{weights.bytes_per_node / 1e6:,.1f} MB"),
        ("trainer idle", _percent(result.trainer_idle_share)),
        ("versions published", f"{result.versions_published:,}"),
        ("memory of the simulation", f"{result.peak_rss_mb:,} MB"),
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows
    )
    return f"<table>{body}</table>"


def _marks(series: Series) -> str:
    if not series.marks:
        return ""
    rows = ((f"{at:.1f} s", what) for at, what in series.marks)
    return f"<h2>Faults and events</h2>{_table(rows)}"


def _number(value: float | None, unit: str) -> str:
    return "none" if value is None else f"{value:.3g}{unit}"


def _percent(value: float | None, digits: int = 1) -> str:
    """Format a share with enough digits to distinguish it from 0 and 1."""
    if value is None:
        return "none"
    while digits < PERCENT_DIGITS_MAX and value not in (0, 1) and _rounds_away(value, digits):
        digits += 1
    return f"{value:.{digits}%}"


def _rounds_away(value: float, digits: int) -> bool:
    return round(value, digits + 2) in (0, 1)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"
