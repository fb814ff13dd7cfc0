"""Weight forest: cost per version, balance, and changes caused by a few records.

The roster is random: upload lines of 5 to 500 Mbit/s, three of ten members behind NAT. For each
number of members:

* *microseconds per member* (processor time) to compute the forest of a new version, all stripes,
  from a known roster; and the microseconds of one node's candidates in one stripe afterwards;
* *balance*: the maximum of children per capacity of inner nodes over the average, with equal and
  with random lines;
* *edges* (stripe, child, parent) that differ after 1 or 5 records are removed, added, or changed in
  capacity. Averages over draws, without the edges of these members.

Usage: ``python benchmarks/shardcast/forest.py [--members N ...] [--json]``
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from statistics import fmean
from typing import Any

from protocol.core import crypto
from protocol.core.types import PeerId
from protocol.shardcast import forest
from protocol.shardcast.forest import ForestMember, ForestMembers

ROOT = PeerId("root")
STRIPES, FANOUT = 4, 4
MEMBERS = [200, 1_000, 10_000]
LINES_BYTES_PER_SECOND = [625_000, 2_500_000, 2_500_000, 13_750_000, 62_500_000]
NAT_SHARE = 0.3
DRAWS = 4

Edge = tuple[int, PeerId, PeerId]


def drawn(count: int, seed: int, *, equal: bool = False) -> list[ForestMember]:
    """Return a random roster."""
    draw = random.Random(seed)
    return [
        ForestMember(
            PeerId(f"12D3KooW{seed}-{number}"),
            10_000_000 if equal else draw.choice(LINES_BYTES_PER_SECOND),
            draw.random() >= NAT_SHARE,
        )
        for number in range(count)
    ]


def edges(members: list[ForestMember], version: bytes) -> set[Edge]:
    """Return all edges of a version's forest."""
    hashed, digest = ForestMembers(members), crypto.digest(version)
    return {
        (stripe, child, parent)
        for stripe in range(STRIPES)
        for child, parent in forest.tree(
            hashed, ROOT, digest, stripe, STRIPES, FANOUT
        ).parents.items()
    }


def cost(count: int) -> dict[str, float]:
    """Return processor microseconds: per member of a new version, and per query of a known one."""
    members, me = ForestMembers(drawn(count, 0)), PeerId(f"12D3KooW0-{count // 2}")

    def plan(version: int) -> float:
        began = time.process_time()
        for stripe in range(STRIPES):
            digest = crypto.digest(b"%d" % version)
            forest.candidates(members, ROOT, digest, stripe, me, STRIPES, FANOUT)
        return 1e6 * (time.process_time() - began)

    first = [plan(version) for version in range(DRAWS)]
    again = [plan(version) for version in range(DRAWS) for _ in range(100)]
    return {
        "new_version_us_per_member": round(min(first) / count, 2),
        "known_version_us": round(fmean(again) / STRIPES, 2),
    }


def balance(members: list[ForestMember]) -> float:
    """Return the maximum of children per capacity, over the average."""
    capacity = {member.peer: member.upload_bytes_per_second for member in members}
    children = Counter(parent for *_, parent in edges(members, b"balance") if parent != ROOT)
    share = children.total() / sum(capacity[peer] for peer in children)
    return max(count / capacity[peer] for peer, count in children.items()) / share


Change = Callable[[list[ForestMember], set[PeerId]], list[ForestMember]]

CHANGES: dict[str, Change] = {
    "removed": lambda members, named: [m for m in members if m.peer not in named],
    "added": lambda members, named: [*members, *drawn(len(named), 10_000)],
    "changed": lambda members, named: [
        m._replace(upload_bytes_per_second=4 * m.upload_bytes_per_second) if m.peer in named else m
        for m in members
    ],
}


def moved(count: int, records: int, change: Change) -> float:
    """Return how many edges of other members differ after a change of some records."""
    numbers = []
    for seed in range(DRAWS):
        members = drawn(count, seed)
        named = {member.peer for member in random.Random(seed).sample(members, records)}
        before, after = edges(members, b"moved"), edges(change(members, named), b"moved")
        numbers.append(len({edge for edge in before - after if edge[1] not in named}))
    return fmean(numbers)


def measured(count: int) -> dict[str, Any]:
    """Return all results for one number of members."""
    return {
        "members": count,
        "edges": STRIPES * count,
        **cost(count),
        "balance_equal_lines": round(balance(drawn(count, 0, equal=True)), 2),
        "balance": round(balance(drawn(count, 0)), 2),
        **{
            f"{name}_{records}": round(moved(count, records, change))
            for name, change in CHANGES.items()
            for records in (1, 5)
        },
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, nargs="+", default=MEMBERS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measured(count) for count in arguments.members]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for name in rows[0]:
        print(f"{name:<28}", *(f"{row[name]:>10}" for row in rows))


if __name__ == "__main__":
    main()
