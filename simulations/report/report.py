"""A directory that tells a run: ``result.json``, ``series.json``, pictures, and one HTML page."""

import json
from pathlib import Path

from simulations.metrics.numbers import Result
from simulations.metrics.series import Series
from simulations.report.page import render_page
from simulations.report.plots import draw_all


def write_report(directory: Path, result: Result, series: Series, command: str) -> Path:
    """Write the report of a run, which ``command`` repeats; return the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures = draw_all(series)
    for name, png in pictures.items():
        (directory / f"{name}.png").write_bytes(png)
    (directory / "result.json").write_text(to_json(result.to_json()))
    (directory / "series.json").write_text(json.dumps(series.to_json()) + "\n")
    page = directory / "index.html"
    page.write_text(render_page(result, series, pictures, command))
    return page


def to_json(values: object) -> str:
    """Return indented JSON with its final newline."""
    return json.dumps(values, indent=2) + "\n"
