"""Calibration file: the differences of honest pairs, one part a line.

A calibration takes minutes and may be interrupted. Each part is written when complete; a line cut
by a crash is dropped, and the same command resumes. Thresholds follow from the file alone, so it
may come from another machine.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocol.core.types import Digest
from protocol.rollout.statistics import Measurement, Recomputed, measured
from protocol.run.recipe import Recipe, ToplocSection
from protocol.toploc import ChunkResult

FORMAT = "prime-node-calibration/1"

FILE_BYTES_MAX = 1 << 30
"""A million tokens with four validators take about 400 MB."""


@dataclass(frozen=True, slots=True)
class ClaimRecording:
    """Claimed log-probabilities of sequences, and their recomputation."""

    name: str
    claimed: Sequence[Sequence[float]]
    recomputed: Sequence[Recomputed]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(map(len, self.claimed))

    def by_chunk(self, rules: ToplocSection) -> list[list[Measurement]]:
        """Return the measurement of every chunk of every sequence."""
        return [
            [measured(rules, *part) for part in _chunks(claimed, own, rules.chunk_tokens)]
            for claimed, own in zip(self.claimed, self.recomputed, strict=True)
        ]


def _chunks(
    claimed: Sequence[float], own: Recomputed, chunk_tokens: int
) -> Iterator[tuple[Sequence[float], Recomputed]]:
    for number, chunk in enumerate(own.chunks):
        part = slice(number * chunk_tokens, (number + 1) * chunk_tokens)
        yield claimed[part], Recomputed([chunk], own.logprobs[part], own.gaps[part])


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """The calibrated computation; thresholds hold for no other one."""

    policy: str
    """Digest of the weights, hexadecimal."""
    dtype: str
    head: str
    precision: str
    chunk_tokens: int
    top_k: int
    temperature: float
    task: str
    """Source of the prompts."""

    @classmethod
    def of(cls, recipe: Recipe, policy: Digest) -> "MeasuredEngine":
        """Return the subject of a calibration of ``recipe`` with a policy."""
        model, proofs = recipe.model, recipe.toploc
        return cls(
            policy=policy.hex(),
            dtype=model.dtype,
            head=model.head,
            precision=proofs.precision,
            chunk_tokens=proofs.chunk_tokens,
            top_k=proofs.top_k,
            temperature=recipe.sampling.temperature,
            task=recipe.environment.name,
        )


class MeasurementFile:
    """A calibration of one subject, on disk; parts are numbered in order of creation."""

    def __init__(self, path: Path, subject: MeasuredEngine, measured_on: str) -> None:
        """Open or create a file; raises ``ValueError`` if it is invalid or of another subject.

        ``measured_on`` names model, machine and libraries; an existing file keeps its own.
        """
        self._path = path
        self.measured_on = measured_on
        self._parts: list[list[ClaimRecording]] = []
        try:
            lines = self._read()
            if lines:
                self._take(lines, subject)
            else:
                self._append({"format": FORMAT, "on": measured_on, "subject": asdict(subject)})
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None

    @property
    def parts(self) -> int:
        """Number of complete parts."""
        return len(self._parts)

    @property
    def tokens(self) -> int:
        """Number of honest tokens, counted once per recomputation."""
        return sum(recording.tokens for part in self._parts for recording in part)

    @property
    def recordings(self) -> list[ClaimRecording]:
        """The recordings of each pair of engines, over all parts."""
        pairs: dict[str, list[ClaimRecording]] = {}
        for part in self._parts:
            for recording in part:
                pairs.setdefault(recording.name, []).append(recording)
        return [joined(name, recordings) for name, recordings in pairs.items()]

    def add(self, part: Sequence[ClaimRecording]) -> None:
        """Append a complete part; raises ``OSError``."""
        self._append({"pairs": [_values(recording) for recording in part]})
        self._parts.append(list(part))

    def _read(self) -> list[dict[str, Any]]:
        """Parse the complete lines, and truncate the rest."""
        if not self._path.exists():
            return []
        if self._path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"{self._path} is larger than {FILE_BYTES_MAX >> 20} MiB")
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            values = [json.loads(line) for line in whole.splitlines()]
        except (ValueError, RecursionError):
            raise ValueError(f"{self._path} is no calibration; remove it to measure anew") from None
        if len(whole) < len(data):
            os.truncate(self._path, len(whole))
        return values

    def _take(self, lines: Sequence[Any], subject: MeasuredEngine) -> None:
        other = f"{self._path} is no calibration of this kind; remove it to measure anew"
        try:
            head, *parts = lines
            if head["format"] != FORMAT:
                raise ValueError(other)
            found = MeasuredEngine(**head["subject"])
            self.measured_on = str(head["on"])
            self._parts = [[_recording(one) for one in part["pairs"]] for part in parts]
        except (AttributeError, KeyError, TypeError):
            raise ValueError(other) from None
        for name, value in asdict(found).items():
            if value != (ours := getattr(subject, name)):
                raise ValueError(
                    f"{self._path} was measured with {name} {value}, the run has {ours}: bring "
                    "another file, or remove it to measure anew"
                )

    def _append(self, values: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def joined(name: str, recordings: Iterable[ClaimRecording]) -> ClaimRecording:
    """Join recordings of one pair of engines."""
    known = list(recordings)
    claimed = [one for recording in known for one in recording.claimed]
    return ClaimRecording(
        name, claimed, [one for recording in known for one in recording.recomputed]
    )


def _values(recording: ClaimRecording) -> dict[str, Any]:
    return {
        "name": recording.name,
        "claimed": [list(one) for one in recording.claimed],
        "recomputed": [
            {
                "chunks": [
                    [one.exponent_mismatches, one.mantissa_error_mean, one.mantissa_error_median]
                    for one in own.chunks
                ],
                "logprobs": list(own.logprobs),
                "gaps": list(own.gaps),
            }
            for own in recording.recomputed
        ],
    }


def _recording(values: dict[str, Any]) -> ClaimRecording:
    recomputed = [
        Recomputed(
            [ChunkResult(int(chunk[0]), *map(float, chunk[1:])) for chunk in own["chunks"]],
            [float(value) for value in own["logprobs"]],
            [float(value) for value in own["gaps"]],
        )
        for own in values["recomputed"]
    ]
    claimed = [[float(value) for value in one] for one in values["claimed"]]
    if len(claimed) != len(recomputed):
        raise TypeError("the numbers of claims and checks differ")
    return ClaimRecording(str(values["name"]), claimed, recomputed)
