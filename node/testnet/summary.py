"""Summary printed at the end of a testnet."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from node.cli.render.style import BAD, DIM, GOOD
from node.local.units import bytes_text
from node.testnet.plan import SwarmLayout
from node.testnet.record import SwarmRecord
from node.testnet.report import honest_rejected


def draw_summary(
    report: dict[str, Any],
    record: SwarmRecord,
    layout: SwarmLayout | None,
    failure: str,
    *,
    model_stays: bool = False,
) -> RenderableType:
    """Return the report as a table, with the paths of kept files."""
    table = Table.grid(padding=(0, 3))
    table.add_column(style=DIM, justify="right")
    table.add_column()
    for label, value in _rows(report, record):
        table.add_row(label, value)
    others = "all files but the model are" if model_stays else "all files are"
    told = [f"{others} removed; --keep keeps report, reward curve and logs"]
    if layout is not None:
        told = [str(path) for path in (layout.report, layout.reward_picture) if path.exists()]
    files = Text("\n".join(told), style=DIM)
    return Group(Text(), _headline(report, failure), Text(), table, Text(), files)


def _headline(report: dict[str, Any], failure: str) -> Text:
    if failure:
        return Text(f"the swarm failed: {failure}", BAD)
    return Text(f"the swarm trained {report['steps']} versions", GOOD)


def _rows(report: dict[str, Any], record: SwarmRecord) -> list[tuple[str, str | Text]]:
    rollouts = report["rollouts"]
    reward = f"{_number(report['reward_first'])} → {_number(report['reward_last'])}"
    uncertified, idle = report["trained_without_certificate"], report["trainer_idle_share"]
    busy = "-" if idle is None else f"{100 * idle:.0f} % of the time since its first step"
    outcomes = (
        f"{rollouts['committed']} committed, {rollouts['certified']} certified, "
        f"{rollouts['rejected']} rejected ({honest_rejected(record)} of honest workers), "
        f"{rollouts['expired']} expired"
    )
    memory = ", ".join(f"{what} {size} MB" for what, size in report["peak_rss_mb"].items())
    return [
        ("run", report["run_id"][:16] or "-"),
        ("time", f"{report['wall_s']:.0f} s"),
        ("reward", f"{reward}, greedy {_number(report['greedy_eval_last'])}"),
        ("as expected", _expected(report["expected"])),
        ("rollouts", outcomes),
        ("first certificate", f"{_number(report['seconds_to_first_certificate'], 0)} s"),
        ("trained without certificate", Text(f"{uncertified}", BAD if uncertified else GOOD)),
        ("policy lag", f"at most {report['policy_lag_max']}"),
        ("trainer idle", busy),
        ("weights sent", bytes_text(report["weights_bytes_sent"])),
        ("peak memory", memory),
        *((cheater["kind"], _cheater(cheater)) for cheater in report["cheaters"]),
    ]


def _cheater(counts: dict[str, Any]) -> Text:
    if "lost_seat" in counts:
        return Text("lost its seat", GOOD) if counts["lost_seat"] else Text("has its seat", BAD)
    style = BAD if counts["certified"] else GOOD
    text = Text(f"{counts['committed']} committed, ")
    return text.append(f"{counts['certified']} certified", style)


def _expected(found: dict[str, Any] | None) -> Text:
    if found is None:
        return Text("unknown: the recipe has no expected reward for a run of this length", DIM)
    met, where = found["met"], f"at version {found['version']}"
    compared = f"{found['reward']:.2f} {where}, expected at least {found['reward_least']:.2f}"
    return Text(f"{'yes' if met else 'no'}: {compared}", GOOD if met else BAD)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
