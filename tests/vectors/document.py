"""The tables of ``docs/protocol.md``, by heading; what a reader of the page has, and no code."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

Row = dict[str, str]
Table = list[Row]


def tables(text: str) -> dict[str, list[Table]]:
    """Return the tables below each heading, rows as column -> cell, without backticks."""
    found: dict[str, list[Table]] = {}
    heading, columns = "", None
    for line in text.splitlines():
        if line.startswith("#"):
            heading, columns = line.lstrip("# ").replace("`", ""), None
        elif not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = _cells(line)
            found.setdefault(heading, []).append([])
        elif not set(line) <= set("|- "):
            found[heading][-1].append(dict(zip(columns, _cells(line), strict=True)))
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]


TABLES = tables(PAGE.read_text())


def fields_of(heading: str) -> dict[str, Row]:
    """Return the rows of the one table below ``heading`` by their first cell."""
    (table,) = TABLES[heading]
    return {next(iter(row.values())): row for row in table}


def plain(text: str) -> str:
    """Return a text of the page with its powers written out: ``[0, 2^53]``."""
    return re.sub(r"(\d+)\^(\d+)", lambda match: str(int(match[1]) ** int(match[2])), text)


def number(text: str) -> int:
    """Return a number as the page writes it: ``-2^53``, ``1000``."""
    return int(plain(text))
