"""Contents of the live view besides the record: stage, limits and commands."""

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
    """The state of a view; ``notice`` is a line about a current problem, else empty."""

    environment: str
    seed: int
    steps: int
    seconds_max: float
    stage: Stage = "loading"
    run_id: str = ""
    join_command: str = ""
    status_command: str = ""
    join_script: str = ""
    status_script: str = ""
    """Files with these two commands, whose names are shorter than the commands."""
    web_url: str = ""
    """Address of the dashboard of the swarm."""
    notice: str = ""


def lasting_text(screen: Screen) -> str:
    """Return the end condition of the swarm."""
    if math.isinf(screen.seconds_max):
        return "it runs until then"
    minutes = screen.seconds_max / 60
    return f"it ends with version {screen.steps}, or after {minutes:g} min; --forever prevents it"


def seconds_left(record: SwarmRecord, screen: Screen, now: float) -> float | None:
    """Return the expected seconds to the last step or the time limit, whichever is first."""
    recent = record.checkpoints[-_RATE_WINDOW_VERSIONS:]
    if screen.stage != "learning" or len(recent) < 3 or math.isinf(screen.seconds_max):
        return None
    first, last = recent[0], recent[-1]
    seconds_per_version = (last.created_at - first.created_at) / (len(recent) - 1)
    ends_at = last.created_at + (screen.steps - last.version) * seconds_per_version
    return max(0.0, min(ends_at, record.started_at + screen.seconds_max) - now)


def progress_line(record: SwarmRecord, screen: Screen, now: float) -> str:
    """Return one line for a log or a dumb terminal."""
    counts = record.rollouts
    last = "" if math.isinf(screen.seconds_max) else f"/{screen.steps}"
    parts = [
        f"[{now - record.started_at:4.0f} s]",
        STAGE_TEXT[screen.stage],
        f"version {max(0, record.newest_version)}{last}",
        f"reward {record.rewards[-1][1]:.2f}" if record.rewards else "reward -",
        f"certified {counts.certified} rejected {counts.rejected} expired {counts.expired}",
        f"lag {record.policy_lag_max}",
        f"weights sent {bytes_text(record.weights_sent)}",
        f"nodes {len(record.running)}/{len(record.nodes)}",
    ]
    return "  ".join(parts)
