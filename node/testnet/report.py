"""``report.json``: results of a testnet, computed from its record alone."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from node.founding.expected import LearningOutcome, Point, outcome
from node.testnet.plan import NodePlan
from node.testnet.record import SwarmRecord
from node.testnet.spread import spread
from protocol.core.types import Role

REWARD_WINDOW_STEPS = 5
"""The first and the last reward of a report are means over this many steps."""

_MEGABYTE = 1_000_000


def build_report(
    record: SwarmRecord,
    *,
    run_id: str,
    versions: int,
    wall_seconds: float,
    greedy_eval_last: float | None,
    curve: Sequence[Point] = (),
) -> dict[str, Any]:
    """Return the report of a run with ``versions`` steps.

    ``reward_*`` are None before a step, ``greedy_*`` without an evaluation. ``expected`` compares
    the rewards with the recipe's ``curve``; None before its first point.
    """
    rewards = [reward for _, reward in record.rewards]
    counts = record.rollouts
    first_certificate = record.first_certificate_seconds
    return {
        "run_id": run_id,
        "wall_s": round(wall_seconds, 1),
        "seconds_to_first_certificate": _rounded(first_certificate, 1),
        "steps": max(0, record.newest_version),
        "reward_first": _mean(rewards[:REWARD_WINDOW_STEPS]),
        "reward_last": _mean(rewards[-REWARD_WINDOW_STEPS:]),
        "greedy_eval_last": _rounded(greedy_eval_last, 4),
        "evaluation": _evaluation(record),
        "expected": _expected(outcome(curve, record.rewards)),
        "rollouts": {
            "committed": counts.committed,
            "certified": counts.certified,
            "rejected": counts.rejected,
            "rejected_reasons": dict(counts.rejected_reasons),
            "expired": counts.expired,
        },
        "trained_without_certificate": record.trained_without_certificate,
        "cheaters": _cheaters(record),
        "policy_lag_max": record.policy_lag_max,
        "trainer_idle_share": _rounded(record.trainer_idle_share(versions), 4),
        "policy_swap_seconds_median": _rounded(record.policy_swap_seconds, 2),
        "weights_bytes_sent": record.weights_sent,
        "versions": _versions(record),
        "peak_rss_mb": _peak_memory(record),
        "nodes": dict(Counter(str(node.plan.role) for node in record.nodes.values())),
    }


def _evaluation(record: SwarmRecord) -> list[dict[str, Any]]:
    """Return the evaluated versions, from the node that has read the most rollouts."""
    fields = ("reward_mean", "reward_low", "reward_high", "solved_fraction")
    return [
        {"version": one.version, "problems": one.problems, "answers": one.answers}
        | {name: round(getattr(one, name), 4) for name in fields}
        for one in record.evaluation
    ]


def _expected(found: LearningOutcome | None) -> dict[str, Any] | None:
    if found is None:
        return None
    point = found.point
    return {
        "version": point.version,
        "reward_least": point.reward,
        "reward": round(found.reward, 4),
        "met": found.met,
    }


def honest_rejected(record: SwarmRecord) -> int:
    """Return the number of rejected rollouts of honest nodes, including joined ones."""
    dishonest = {node.plan.peer_id for node in record.nodes.values() if node.plan.behaviour}
    view = record.swarm_view
    workers = view.workers if view is not None else {}
    return sum(counts.rejected for worker, counts in workers.items() if worker not in dishonest)


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write the report as indented JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n")


def _cheaters(record: SwarmRecord) -> list[dict[str, Any]]:
    plans = [node.plan for node in record.nodes.values() if node.plan.behaviour]
    return [{"kind": plan.behaviour, **_outcome(record, plan)} for plan in plans]


def _outcome(record: SwarmRecord, plan: NodePlan) -> dict[str, Any]:
    if plan.role is Role.VALIDATOR:
        return {"lost_seat": record.lost_seat(plan)}
    counts = record.worker_counts(plan.peer_id)
    return {"committed": counts.committed, "certified": counts.certified}


def _versions(record: SwarmRecord) -> list[dict[str, Any]]:
    """Return the distribution of each version; bytes are counted by receivers."""
    known = (spread(record, point.version) for point in record.checkpoints)
    return [
        {
            "version": one.version,
            "nodes": len(one.receivers),
            "nodes_reached": len(one.arrivals),
            "forms": dict(one.forms),
            "seconds_to_half": _rounded(one.seconds_to_half, 3),
            "seconds_to_all": _rounded(one.seconds_to_all, 3),
            "bytes_from_publisher": one.root_bytes,
            "bytes_from_peers": one.peer_bytes,
            "bytes_by_http": one.http_bytes,
            "bytes_by_stream": one.stream_bytes,
        }
        for one in known
        if one is not None
    ]


def _peak_memory(record: SwarmRecord) -> dict[str, int]:
    """Return the peak memory of the largest process of each kind, in megabytes rounded up."""
    peaks = {str(role): 0 for role in Role} | {"p2pd": 0} | record.other_peak_rss_bytes
    for node in record.nodes.values():
        role = str(node.plan.role)
        peaks[role] = max(peaks[role], node.peak_rss_bytes)
        peaks["p2pd"] = max(peaks["p2pd"], node.p2pd_peak_rss_bytes)
    return {what: math.ceil(peak / _MEGABYTE) for what, peak in peaks.items() if peak}


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 4) if values else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
