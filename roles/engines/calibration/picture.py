"""Plot of a calibration: distribution of honest and dishonest sequences per statistic."""

from collections.abc import Sequence
from html import escape

import numpy as np

from protocol.rollout.statistics import STATISTICS, Sums, added, compared
from roles.engines.calibration.calibrate import Calibration
from roles.engines.calibration.measurement import ClaimRecording

WIDTH, LABEL_WIDTH, ROW, TOP = 980, 230, 16, 34
HONEST, LIE, BOUND = "#2f7d4f", "#b3402e", "#333333"
QUANTILES = (0.05, 0.5, 0.95)
ROLLOUT_TOKENS = 1024
"""Length of the rollout whose bound is drawn."""


def draw(calibration: Calibration) -> str:
    """Return an SVG: for each statistic the means of sequences, and the bound of a rollout.

    A bar spans the 5 % to 95 % quantiles, a dot is the median; scales are logarithmic.
    """
    rows = [(one, HONEST) for one in calibration.pairs] + [(one, LIE) for one in calibration.lies]
    height = TOP + len(rows) * ROW + 20
    panels = [
        _panel(calibration, rows, place, name, height) for place, name in enumerate(STATISTICS)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height * len(panels)}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(panels)}</svg>\n'
    )


def _panel(
    calibration: Calibration,
    rows: Sequence[tuple[ClaimRecording, str]],
    place: int,
    name: str,
    height: int,
) -> str:
    rules = calibration.rules
    spans = [_quantiles(calibration, recording, place) for recording, _ in rows]
    rollout = Sums(ROLLOUT_TOKENS, ROLLOUT_TOKENS // rules.chunk_tokens)
    limit = compared(rules, rollout, rules.false_reject_rate)[place].allowed
    seen = [value for span in spans for value in span if value > 0] + [limit]
    low, high = np.log10(min(seen)) - 0.1, np.log10(max(seen)) + 0.1

    def x(value: float) -> float:
        share = (np.log10(max(value, 10**low)) - low) / (high - low)
        return float(LABEL_WIDTH + share * (WIDTH - LABEL_WIDTH - 20))

    top = place * height
    at, bottom = f"{x(limit):.1f}", top + height - 16
    said = f"bound at {ROLLOUT_TOKENS} tokens: {limit:.3g}"
    parts = [
        _text(10, top + 18, name.replace("_", " ")),
        f'<path d="M{at} {top + 22}V{bottom}" stroke="{BOUND}" stroke-dasharray="3 2"/>',
        _text(x(limit) + 4, top + 18, said),
    ]
    for number, ((recording, colour), span) in enumerate(zip(rows, spans, strict=True)):
        y = top + TOP + number * ROW
        bar = f"M{x(span[0]):.1f} {y}H{x(span[2]):.1f}"
        parts += [
            _text(10, y + 4, recording.name),
            f'<path d="{bar}" stroke="{colour}" stroke-width="4" stroke-linecap="round"/>',
            f'<circle cx="{x(span[1]):.1f}" cy="{y}" r="4" fill="{colour}"/>',
        ]
    return "".join(parts)


def _text(x: float, y: float, said: str) -> str:
    return f'<text x="{x:.1f}" y="{y}">{escape(said)}</text>'


def _quantiles(calibration: Calibration, recording: ClaimRecording, place: int) -> list[float]:
    """Return quantiles over sequences of the absolute mean of one statistic."""
    sequences = recording.by_chunk(calibration.rules)
    means = [abs(added(one.sums for one in chunks).means[place]) for chunks in sequences]
    return [float(value) for value in np.quantile(means, QUANTILES)]
