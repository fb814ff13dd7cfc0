"""Log of training steps as JSON lines in one file.

Each line is an object: ``version``, ``ended_at`` in unix seconds, and the statistics of
``roles.runtime.training_steps``, null where unknown.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from typing_extensions import override

from node.api.step_logs.base import StepLog
from roles.runtime.training_steps import TrainingStep, encoded

LINE_BYTES_MAX = 16 * 1024
"""A line has about 700 bytes."""


class JsonLines(StepLog):
    """Appends to the file at ``path``; each write reaches the disk before it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    @override
    def open(self) -> int:
        """See ``StepLog``; raises ``ValueError`` when the last whole line is not a step."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = file = self._path.open("a+b")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LINE_BYTES_MAX))
        tail = file.read()
        whole = tail[: tail.rfind(b"\n") + 1]
        file.truncate(size - len(tail) + len(whole))  # drop a line truncated by a crash
        if not whole:
            return 0
        try:
            return int(json.loads(whole.splitlines()[-1])["version"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"the last line of {self._path} is not a training step; move the file away"
            ) from None

    @override
    def write(self, steps: Sequence[TrainingStep]) -> None:
        assert self._file is not None
        self._file.write(b"".join(encoded(step) + b"\n" for step in steps))
        self._file.flush()
        os.fsync(self._file.fileno())

    @override
    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
