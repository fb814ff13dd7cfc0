"""Parallel speed-up of threads that encode and decode patches, limited by the interpreter lock.

Each thread has its own pair of files of random bf16 weights, of which 1 % differ by one unit. It
encodes and decodes from file to file as a daemon does. Speeds are weights per second of all threads
together, in the best of many short runs. *Cores* are processor seconds over seconds in the run with
the most. SHA-256 never holds the interpreter lock, so its *cores* are the cores available. If they
are fewer than the threads, the machine was too busy for a result.

Usage: ``python benchmarks/shardcast/threads.py [--threads N] [--megabytes N] [--runs N] [--json]``
"""

import argparse
import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from node.storage import encodings
from protocol.core.crypto import digest
from protocol.core.types import Version
from roles.ports.engines import Policy

CHANGED_SHARE = 0.01
WEIGHT_STD = 0.02
COLUMNS = 4096
PIECE_BYTES = 1 << 18

Work = Callable[[int], object]
"""(thread number) -> work of that thread."""


@dataclass(frozen=True)
class Row:
    """Results for one kind of work."""

    work: str
    one_thread_gb_per_s: float
    threads_gb_per_s: float
    speedup: float
    cores: float


class Pairs:
    """A base, a version of it and its patch for each thread, in a folder."""

    def __init__(self, folder: Path, count: int, rows: int) -> None:
        self._folder = folder
        self._policy = [
            Policy(Version(0), digest(b"base"), self._path("base", it)) for it in range(count)
        ]
        draw = np.random.default_rng(1)
        for number in range(count):
            drawn = draw.standard_normal(rows * COLUMNS, dtype=np.float32) * np.float32(WEIGHT_STD)
            words = (drawn.view(np.uint32) >> 16).astype("<u2")
            write_weights(self._path("base", number), words)
            words[draw.random(len(words), dtype=np.float32) < CHANGED_SHARE] += 1
            write_weights(self._path("new", number), words)
        self._content = self._path("new", 0).read_bytes()
        self.bytes = len(self._content)

    def _path(self, name: str, number: int) -> Path:
        return self._folder / f"{name}{number}"

    def encode(self, number: int) -> None:
        """Write a patch."""
        paths = self._path("new", number), self._policy[number], self._path("patch", number)
        assert encodings.encode(*paths)

    def decode(self, number: int) -> None:
        """Decode a version from its patch."""
        made = self._path("made", number)
        decoding = encodings.DecodingFile(self._policy[number], made, self.bytes)
        with self._path("patch", number).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                decoding.feed(piece)
        decoding.finish()
        decoding.close()

    def sha256(self, _number: int) -> None:
        """Hash a version."""
        hashlib.sha256(self._content).digest()


def write_weights(path: Path, words: np.ndarray) -> None:
    """Write a file of weights with one tensor."""
    shape = [len(words) // COLUMNS, COLUMNS]
    table = {"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, words.nbytes]}}
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + words.tobytes())


def timed(work: Work, threads: int) -> tuple[float, float]:
    """Return the seconds and processor seconds of a run."""
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    began, used = time.perf_counter(), time.process_time()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return time.perf_counter() - began, time.process_time() - used


def measured(name: str, work: Work, pairs: Pairs, threads: int, runs: int) -> Row:
    """Return the results for one kind of work."""
    alone, together = [], []
    for _ in range(runs):  # alternating, so that both see the same load
        alone.append(timed(work, 1))
        together.append(timed(work, threads))
    one = pairs.bytes / min(seconds for seconds, _ in alone) / 1e9
    all_of_them = threads * pairs.bytes / min(seconds for seconds, _ in together) / 1e9
    cores = max(used / seconds for seconds, used in together)
    speedup = all_of_them / one
    return Row(name, round(one, 2), round(all_of_them, 2), round(speedup, 2), round(cores, 2))


def run(folder: Path, threads: int, rows: int, runs: int) -> list[Row]:
    """Measure all kinds of work."""
    pairs = Pairs(folder, threads, rows)
    works = {"encode": pairs.encode, "decode": pairs.decode, "sha256": pairs.sha256}
    return [measured(name, work, pairs, threads, runs) for name, work in works.items()]


def main() -> None:
    """Measure and print."""
    encodings.THREADS = 1  # per worker; this benchmark adds threads itself
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        count = options.megabytes * 1_000_000 // (2 * COLUMNS)
        rows = run(Path(folder), options.threads, count, options.runs)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
