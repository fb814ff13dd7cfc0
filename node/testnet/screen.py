"""What the live view shows beside the record: the stage of the run, its limits, its commands."""

import math
from dataclasses import dataclass
from typing import Literal

from node.local.units import bytes_text
from node.testnet.record import SwarmRecord

Stage = Literal["loading", "genesis", "starting", "learning", "draining", "done", "failed"]

STAGE_TEXT: dict[Stage, str] = {
    "loading": "loading libraries",
    "genesis": "cold start of the first policy",
    "starting": "starting nodes",
    "learning": "learning",
    "draining": "draining",
    "done": "done",
    "failed": "failed",
}

_RATE_WINDOW_VERSIONS = 10


@dataclass(slots=True)
class Screen:
    """The state of a view; ``notice`` is one line that matters now, empty most of the time."""

    environment: str
    seed: int
    steps: int
    seconds_max: float
    stage: Stage = "loading"
    run_id: str = ""
    address: str = ""
    """Where somebody else may join."""
    join_command: str = ""
    status_command: str = ""
    join_script: str = ""
    status_script: str = ""
    """Files with these two commands: their names fit where the commands do not."""
    web_url: str = ""
    """Where the pages about the whole swarm are."""
    notice: str = ""


def lasting_text(screen: Screen) -> str:
    """Return for how long there is something to join."""
    if math.isinf(screen.seconds_max):
        return "it goes on until then"
    minutes = screen.seconds_max / 60
    return f"it ends with version {screen.steps}, or after {minutes:g} min; --forever lets it go on"


def eta_seconds(record: SwarmRecord, screen: Screen, now: float) -> float | None:
    """Return the expected seconds to the last step, or to the time limit if that comes first."""
    recent = record.checkpoints[-_RATE_WINDOW_VERSIONS:]
    limit = record.started_at + screen.seconds_max - now
    if screen.stage != "learning" or len(recent) < 3:
        return None
    seconds_per_version = (recent[-1].created_at - recent[0].created_at) / (len(recent) - 1)
    since_last = now - recent[-1].created_at
    missing = screen.steps - recent[-1].version
    left = min(limit, missing * seconds_per_version - since_last)
    return None if math.isinf(screen.seconds_max) else max(0.0, left)


def clock_text(seconds: float) -> str:
    """Return for example ``01:23``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes:02d}:{rest:02d}"


def _of(screen: Screen) -> str:
    return "" if math.isinf(screen.seconds_max) else f"/{screen.steps}"


def progress_line(record: SwarmRecord, screen: Screen, now: float) -> str:
    """Return one line for a log or a terminal that cannot redraw."""
    counts = record.rollouts
    parts = [
        f"[{clock_text(now - record.started_at)}]",
        STAGE_TEXT[screen.stage],
        f"version {max(0, record.newest_version)}{_of(screen)}",
        f"reward {record.rewards[-1][1]:.2f}" if record.rewards else "reward -",
        f"certified {counts.certified} rejected {counts.rejected} expired {counts.expired}",
        f"lag {record.policy_lag_max}",
        f"weights sent {bytes_text(record.weights_sent)}",
        f"nodes {len(record.running)}/{len(record.nodes)}",
    ]
    return "  ".join(parts)
