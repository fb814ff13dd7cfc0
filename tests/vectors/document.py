"""Tables of ``docs/protocol.md`` by heading, for readers without the code."""

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
    cells = re.split(r"(?<!\\)\|", line.strip("|"))
    return [cell.strip().replace("`", "") for cell in cells]


TABLES = tables(PAGE.read_text())


def fields_of(heading: str) -> dict[str, Row]:
    """Return the rows of the one table below ``heading`` by their first cell."""
    (table,) = TABLES[heading]
    return {next(iter(row.values())): row for row in table}


def plain(text: str) -> str:
    """Return a text of the page with its powers written out: ``[0, 2^53]``."""
    return re.sub(r"(\d+)\^(\d+)", lambda match: str(int(match[1]) ** int(match[2])), text)


def number(text: str) -> float:
    """Return a number as the page writes it: ``-2^53``, ``1000``, ``2.5``."""
    return float(text) if "." in text else int(plain(text))


SIZE = re.compile(r"(?:at most (\d+)|(\d+) (to|or) (\d+)|(\d+)) (?:items|bytes|characters)")

PARTS = {
    "hardware": "hardware",
    "encodings": "encoding",
    "round": "training-round",
    "contributions": "contribution",
    "runtime": "runtime",
    "loss": "loss",
    "outer": "outer",
}
"""Fields whose maps have a table of their own."""


def require_row(value, kind: str, bounds: str) -> None:
    """Check a value against the cells of its row."""
    item_kind = kind.removeprefix("array of ")
    if item_kind != kind:
        own, _, each = plain(bounds).partition("each ")
        assert isinstance(value, list)
        require_size(len(value), own)
        for item in value:
            require_row(item, item_kind, each)
        return
    python = {"int": int, "float": float, "bool": bool, "text": str, "bytes": bytes, "map": dict}
    assert type(value) is python[item_kind]
    if item_kind in ("int", "float"):
        require_interval(value, plain(bounds))
    elif item_kind in ("text", "bytes"):
        require_size(len(value), bounds)
        pattern = re.search(r"\^.*\$", bounds)
        assert pattern is None or re.fullmatch(pattern[0], value)
        if item_kind == "text" and " or " in bounds:
            assert value in bounds.split(" or ")


def require_interval(value: float, bounds: str) -> None:
    opening, least, most, closing = re.fullmatch(r"([\[(])(-?\d+), (\d+)([\])])", bounds).groups()
    assert int(least) <= value <= int(most)
    assert opening == "[" or value != int(least)
    assert closing == "]" or value != int(most)


def require_size(size: int, bounds: str) -> None:
    """Check a size against a text like ``0 or 32 bytes`` or ``at most 8 items``."""
    found = SIZE.match(bounds)
    if found is None:
        return
    most, start, word, end, exactly = found.groups()
    if most:
        assert size <= int(most)
    elif exactly:
        assert size == int(exactly)
    elif word == "to":
        assert int(start) <= size <= int(end)
    else:
        assert size in (int(start), int(end))


def require_table(values: dict, heading: str) -> None:
    """Check that a map has the fields of a table, in order, and each its type and bounds."""
    rows = fields_of(heading)
    optional = {name for name, row in rows.items() if "left out when" in row["meaning"]}
    assert list(values) == sorted(rows.keys() - (optional - values.keys()))
    for name, value in values.items():
        require_row(value, rows[name]["type"], rows[name]["bounds"])
        for part in value if isinstance(value, list) else [value]:
            if name in PARTS:
                require_table(part, PARTS[name])
