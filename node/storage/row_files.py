"""Sequences of a batch as files for the training engine: the ``BatchRows`` port on a directory.

A file has the prompts, tokens and log-probabilities of one certified rollout, four bytes each, and
each prompt once. The daemon keeps only where they are. The files are read in the step after they
are written, so they are not synced, and a start deletes those of an earlier process.
"""

import shutil
from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from typing_extensions import override

from node.storage import files
from protocol.core.types import Digest
from roles.ports.engines import StoredNumbers, TrainingSequence
from roles.ports.storage import BatchRows

_ROWS = ".rows"

_numbers = count()
"""Two readers of one rollout write files of different names."""


class RowDirectory(BatchRows):
    """Files in ``directory``, which is made with the first one and empty after a start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        shutil.rmtree(directory, ignore_errors=True)

    @override
    async def store(
        self, commit: Digest, sequences: Sequence[TrainingSequence]
    ) -> list[TrainingSequence]:
        path = self._directory / (commit.hex() + _ROWS)
        return await files.uninterrupted(files.in_thread(_store, path, sequences))

    @override
    def logprobs(self, name: str) -> Path | None:
        return self._directory / f"{name}.logprobs"

    @override
    async def retain(self, commits: Collection[Digest]) -> None:
        kept = {commit.hex() + _ROWS for commit in commits}
        await files.uninterrupted(files.in_thread(_delete_others, self._directory, kept))


def _store(path: Path, sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """Write the numbers of sequences, and return the sequences with their places."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    partial = path.with_suffix(f".{next(_numbers)}")
    stored: list[TrainingSequence] = []
    try:
        with partial.open("wb") as file:

            def write(kind: str, numbers: Sequence[float] | StoredNumbers) -> StoredNumbers:
                assert not isinstance(numbers, StoredNumbers), "they were read from a body"
                place = StoredNumbers(path, file.tell() // 4, len(numbers))
                array(kind, numbers).tofile(file)
                return place

            last, prompt = None, None
            for one in sequences:
                if prompt is None or one.prompt != last:
                    last, prompt = one.prompt, write("i", one.prompt)
                tokens, logprobs = write("i", one.tokens), write("f", one.logprobs)
                stored.append(replace(one, prompt=prompt, tokens=tokens, logprobs=logprobs))
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return stored


def _delete_others(directory: Path, kept: Collection[str]) -> None:
    for path in directory.glob("*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
