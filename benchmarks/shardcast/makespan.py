"""Time until a version reaches the last node, over the minimum that the lines allow.

The project's machines in virtual time (``broadcast``) and, in the same simulation, a single tree of
fan-out 4 and SHARDCAST's method, ten fixed relays. ``makespan_ratio`` is the last live node's
finish over size / min(up, down). ``--dying`` nodes lose power at random times within that period.
With ``--strong``, so many nodes and the root have 590 Mbit/s both ways, and every second one of the
others is behind NAT; then the bound uses the total upload rate.

A chunk is an event, so there are at most ``CHUNKS``, or ``CHUNKS_MANY`` from ``MANY`` nodes on.
Chunks grow with the file, up to the 4 MiB that an index allows. A larger file is cut
(``simulated_gigabytes``), with unchanged lines, distances and deadlines. Constant costs, as the
start and the detection of a death, then weigh more: the ratio of the whole file is smaller.

Usage: ``python benchmarks/shardcast/makespan.py --nodes N --gigabytes G --up-mbit U --down-mbit D
[--dying SHARE] [--strong N] [--seed S] [--only WAY] [--json]``
"""

import argparse
import json
import resource
import time
from dataclasses import replace
from typing import Any

from broadcast import Broadcast, Plan
from ways import PATIENT, RELAYS, by_forest, by_relays

from node.network.blobs.config import ExchangeLimits
from node.weights.download import TICK_SECONDS
from protocol.core.types import Digest
from protocol.shardcast.index import CHUNK_BYTES_MAX, Shard, ShardIndex, shard_count, shard_length

CHUNKS = 1024
CHUNKS_MANY = 256
MANY = 5000
BASELINE_CHUNKS = 256
BASELINE_TICKS = 100
"""Ticks within the bound. Baselines take many times as long, so a coarser grain, of time too,
changes little. With 100 nodes the tree's ratio is 4.06 either way, that of relays 10.4 and 10.2
with 1 MiB chunks; with 1,000 it is 105 and 108."""

CHUNK_BYTES_MIN = 1 << 20
SHARD_CHUNKS_MAX = 16
SHARDS_MIN = 64
"""Enough that stripes get about equal shares."""

STRIPES = FANOUT = 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--up-mbit", type=float, default=100.0)
    parser.add_argument("--down-mbit", type=float, default=100.0)
    parser.add_argument("--dying", type=float, default=0.0, help="share of the nodes that die")
    parser.add_argument("--strong", type=int, default=0, help="nodes with 590 Mbit/s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["forest", "baselines"], help="leave the others out")
    parser.add_argument("--json", action="store_true", help="on one line")
    options = parser.parse_args()
    began = time.process_time()
    found = measure(options)
    found["cpu_seconds"] = round(time.process_time() - began, 1)
    found["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(found, indent=None if options.json else 2))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of all methods."""
    chunks = CHUNKS if options.nodes < MANY else CHUNKS_MANY
    plan = plan_of(options, chunks)
    found: dict[str, Any] = {
        "nodes": options.nodes,
        "gigabytes": options.gigabytes,
        "simulated_gigabytes": round(plan.total_bytes / 1e9, 3),
        "up_mbit": options.up_mbit,
        "down_mbit": options.down_mbit,
        "dying": options.dying,
        "strong": options.strong,
        "seed": options.seed,
        "shardcast": {
            "shard_bytes": plan.shard_bytes,
            "chunk_bytes": plan.chunk_bytes,
            "stripes": STRIPES,
            "fanout": FANOUT,
        },
    }
    if options.only != "baselines":
        index = index_of(plan)
        found |= Broadcast(plan, index, by_forest(plan, index, STRIPES, FANOUT), "forest").run()
    if options.only != "forest":
        coarse = plan_of(options, min(chunks, BASELINE_CHUNKS))
        open_to_all = ExchangeLimits(streams_per_peer=1 << 20, streams_total=1 << 20)
        tick_seconds = coarse.bound_seconds / BASELINE_TICKS
        coarse = replace(coarse, tick_seconds=tick_seconds, limits=open_to_all)
        index = index_of(coarse)
        ways = {
            "single tree": by_forest(coarse, index, 1, FANOUT, PATIENT),
            "ten relays": by_relays(coarse, index),
        }
        least = least_ratios(coarse)
        found["baselines"] = {
            name: {"least_ratio": least[name], **Broadcast(coarse, index, make, name).run()}
            for name, make in ways.items()
        }
    return found


def least_ratios(plan: Plan) -> dict[str, float]:
    """Return the lower bounds of the baselines over the bound, without deaths.

    An inner node of the tree sends the file ``FANOUT`` times. The root sends it to each relay, and
    the relays to all others.
    """
    sent_in_bound = plan.upload_bytes_per_second * plan.bound_seconds / plan.total_bytes
    copies = {"single tree": FANOUT, "ten relays": max(RELAYS, (plan.nodes - RELAYS) / RELAYS)}
    return {name: round(count / sent_in_bound, 3) for name, count in copies.items()}


def plan_of(options: argparse.Namespace, chunks_max: int) -> Plan:
    """Return the plan, in at most ``chunks_max`` chunks."""
    total_bytes = int(options.gigabytes * 1e9)
    chunk_bytes = min(max(-(-total_bytes // chunks_max), CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
    total_bytes = min(total_bytes, chunks_max * chunk_bytes)
    shard_chunks = max(1, min(SHARD_CHUNKS_MAX, total_bytes // chunk_bytes // SHARDS_MIN))
    return Plan(
        nodes=options.nodes,
        total_bytes=total_bytes,
        shard_bytes=shard_chunks * chunk_bytes,
        chunk_bytes=chunk_bytes,
        upload_bytes_per_second=options.up_mbit * 1e6 / 8,
        download_bytes_per_second=options.down_mbit * 1e6 / 8,
        dying=options.dying,
        seed=options.seed,
        tick_seconds=TICK_SECONDS,
        strong=options.strong,
    )


def index_of(plan: Plan) -> ShardIndex:
    """Return an index of chunk sizes; its digests are unused."""
    nothing, shards = Digest(b""), []
    for number in range(shard_count(plan.total_bytes, plan.shard_bytes)):
        length = shard_length(plan.total_bytes, plan.shard_bytes, number)
        chunks = (nothing,) * shard_count(length, plan.chunk_bytes)
        shards.append(Shard(nothing, length, chunks))
    return ShardIndex(plan.total_bytes, plan.shard_bytes, plan.chunk_bytes, tuple(shards))


if __name__ == "__main__":
    main()
