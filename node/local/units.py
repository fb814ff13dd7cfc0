"""Parsing and formatting of counts, sizes, rates and durations."""

import re

_NUMBER = re.compile(r"^\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*$")
_BYTES = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_BITS = {f"{prefix}bit": 1000**power // 8 for power, prefix in enumerate("kmgt", start=1)}


def parse_bytes(text: str) -> int:
    """Parse ``500MB`` or ``20GiB``; raises ``ValueError``, also for a number without a unit."""
    return _parse(text, _BYTES, "a size such as 500MB or 20GiB")


def parse_rate(text: str) -> int:
    """Parse ``20MB``, ``20MB/s`` or ``160Mbit`` as bytes per second; raises as ``parse_bytes``."""
    return _parse(text.removesuffix("/s"), _BYTES | _BITS, "a rate such as 20MB/s or 160Mbit")


def _parse(text: str, units: dict[str, int], expected: str) -> int:
    match = _NUMBER.match(text)
    if match is not None and not match["unit"]:
        raise ValueError(f"{text!r} has no unit; write {expected}")
    factor = units.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not {expected}")
    return int(float(match["number"]) * factor)


def bytes_text(count: float) -> str:
    """Format a byte count with three digits: ``0 B``, ``1.2 MB``, ``123 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            break
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"


def count_text(count: int) -> str:
    """Format a count, from 10,000 on with three digits: ``9,999``, ``12.3 k``, ``1.9 M``."""
    if count < 10_000:
        return f"{count:,}"
    rest = float(count)
    for unit in ("k", "M", "G", "T"):
        rest /= 1000
        if rest < 999.5 or unit == "T":
            break
    return f"{rest:.3g} {unit}" if rest < 999.5 else f"{rest:,.0f} {unit}"


def duration_text(seconds: float) -> str:
    """Format a duration in its two largest units: ``7 s``, ``3 min 20 s``, ``2 d 4 h``."""
    rest = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])
