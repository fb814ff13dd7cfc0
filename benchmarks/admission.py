"""Cost of admission: seconds to solve a key's proof of work, milliseconds to verify it.

    python benchmarks/admission.py --json

Solved on one core for several keys each, as a node does. A key's work is random, so the median and
the mean of the same keys differ (0.69 to 1, for many keys).
"""

import argparse
import json
import platform
import statistics
import time
from itertools import count
from typing import Any

from protocol.core.crypto import Identity, digest
from protocol.core.types import RunId
from protocol.membership.proof_of_work import is_solved, solve
from protocol.run.sections import AdmissionSection

CHECKS = 200
RUN_ID = RunId(digest(b"benchmark"))


def measured(bits: int, kib: int, passes: int, keys: int) -> dict[str, Any]:
    """Return the measurements of one setting."""
    rules = AdmissionSection(rule="open", work_bits=bits, work_kib=kib, work_passes=passes)
    solved_seconds, hashes = [], 0
    proof, peer = b"", Identity(digest(b"0")).peer_id
    for number in range(keys):
        peer = Identity(digest(b"%d/%d" % (bits, number))).peer_id
        tried = count()
        began = time.perf_counter()
        proof = solve(rules, RUN_ID, peer, number, tried) or b""
        solved_seconds.append(time.perf_counter() - began)
        hashes += next(tried)
    began = time.perf_counter()
    for _ in range(CHECKS):
        assert is_solved(rules, RUN_ID, peer, proof)
    check_ms = (time.perf_counter() - began) / CHECKS * 1e3
    return {
        "work_bits": bits,
        "work_kib": kib,
        "work_passes": passes,
        "keys": keys,
        "solve_seconds_median": round(statistics.median(solved_seconds), 3),
        "solve_seconds_mean": round(statistics.mean(solved_seconds), 3),
        "hashes_per_second": round(hashes / sum(solved_seconds)),
        "check_ms": round(check_ms, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8, 10, 12])
    parser.add_argument("--kib", type=int, default=1024)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--keys", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measured(bits, given.kib, given.passes, given.keys) for bits in given.bits]
    if given.json:
        print(json.dumps({"machine": platform.machine(), "rows": rows}, indent=2))
        return
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
