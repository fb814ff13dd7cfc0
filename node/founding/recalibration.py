"""Recalibration of a run's thresholds from the verdicts of its own swarm.

Verdicts state means and extremes of every rollout. A worker's value is the (lower) median of its
validators' measurements. Workers within twice the median of all workers agree, and the proposal is
their largest value. So a minority of dishonest workers or validators raises a threshold to at most
twice the honest value. Values that fit stay unchanged. A mean near its clip is rejected: values
above the clip were not measured.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from node.storage.state import stored_messages
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId, RunId
from protocol.messages import (
    Certificate,
    MessageT,
    RolloutCommit,
    Signed,
    Verdict,
    envelope_kind,
    open_envelope,
)
from protocol.rollout.agreement import agreed_reason
from protocol.rollout.audit import UNRELATED_SHARE
from protocol.rollout.fit import IMPROBABLE
from protocol.rollout.statistics import PER_CHUNK, SCALE, STATISTICS, Extremes
from protocol.run.manifest import RunManifest
from protocol.run.recipe import ToplocSection
from protocol.run.sections import HonestValue

WORKERS_MIN, VALIDATORS_MIN = 2, 2

ROLLOUTS_MIN, TOKENS_MIN = 16, 4096
"""Minimum sample: fewer measurements do not show the variance of honest means."""

AGREE = 2.0
"""Workers agree if their means are at most this multiple of the median."""

AGREEING_SHARE = 2 / 3

CUT_SHARE = 0.5
"""Largest mean relative to its clip: values above the clip are not measured."""

EXTREME_MARGIN = 2.0
"""Factor on the worst single values, as in a calibration: mostly the statistics decide."""

STANDARD_ERRORS = 3.0


class MeasuredRollout(NamedTuple):
    """Measurement of one rollout by one validator; means and extremes by name."""

    commit: Digest
    worker: PeerId
    validator: PeerId
    tokens: int
    chunks: int
    values: dict[str, float]

    def count(self, name: str) -> int:
        """Return the number of values in the mean ``name``."""
        return self.chunks if name in PER_CHUNK else self.tokens


@dataclass(frozen=True, slots=True)
class Recalibration:
    """Proposed rules, their changed keys, and the size of the sample."""

    rules: ToplocSection
    changed: tuple[str, ...]
    workers: int
    validators: int
    rollouts: int
    tokens: int


def stored_samples(run_id: RunId, store: Path) -> list[MeasuredRollout]:
    """Return the measurements in a node's store; raises ``ValueError`` if it cannot be read."""
    commits: list[Signed[RolloutCommit]] = []
    certificates: list[tuple[Signed[Certificate], list[Signed[Verdict]]]] = []
    for envelope in stored_messages(store):
        kind = envelope_kind(envelope)
        if kind == RolloutCommit.kind:
            commits += _opened([envelope], RolloutCommit, run_id)
        elif kind == Certificate.kind:
            certificates += [
                (signed, _opened(signed.message.verdicts, Verdict, run_id))
                for signed in _opened([envelope], Certificate, run_id)
            ]
    return samples(commits, certificates)


def samples(
    commits: Iterable[Signed[RolloutCommit]],
    certificates: Iterable[tuple[Signed[Certificate], Sequence[Signed[Verdict]]]],
) -> list[MeasuredRollout]:
    """Return the measurements of workers without a rejection for a plain lie."""
    known = {commit.digest: commit for commit in commits}
    found: list[MeasuredRollout] = []
    liars: dict[PeerId, None] = {}
    for certificate, verdicts in certificates:
        commit = known.get(Digest(certificate.message.commit))
        if commit is None:
            continue
        reason = agreed_reason([one.message for one in verdicts])
        if not certificate.message.accepted and reason not in IMPROBABLE:
            liars[commit.signer] = None
        for verdict in verdicts:
            told = verdict.message
            if (len(told.means), len(told.extremes)) == (len(STATISTICS), len(Extremes._fields)):
                names = (*STATISTICS, *Extremes._fields)
                numbers = (one / SCALE for one in (*told.means, *told.extremes))
                values = dict(zip(names, numbers, strict=True))
                sizes = commit.message.tokens, told.chunks
                found.append(
                    MeasuredRollout(commit.digest, commit.signer, verdict.signer, *sizes, values)
                )
    return [one for one in found if one.worker not in liars]


def _opened(
    envelopes: Iterable[bytes], kind: type[MessageT], run_id: RunId
) -> list[Signed[MessageT]]:
    opened = (open_envelope(one, kind, run_id, verify) for one in envelopes)
    return [one for one in opened if not isinstance(one, Fault)]


def recalibrated(
    manifest: RunManifest, found: Sequence[MeasuredRollout], margin: float
) -> Recalibration:
    """Return thresholds that fit the ``found`` samples; raises ``ValueError`` if none do."""
    workers = {one.worker for one in found}
    validators = {one.validator for one in found}
    lengths = {one.commit: one.tokens for one in found}
    rollouts, tokens = len(lengths), sum(lengths.values())
    if len(workers) < WORKERS_MIN or len(validators) < VALIDATORS_MIN:
        raise ValueError(
            f"measurements of {len(workers)} workers by {len(validators)} validators; two of each "
            "are needed, because one alone may be wrong"
        )
    if rollouts < ROLLOUTS_MIN or tokens < TOKENS_MIN:
        raise ValueError(
            f"{rollouts} measured rollouts of {tokens} tokens; wait for {ROLLOUTS_MIN} of "
            f"{TOKENS_MIN}"
        )
    rules = manifest.toploc
    old = rules.model_dump()
    honest = {name: _honest(rules, name, found, margin) for name in STATISTICS}
    limits = {name: _limit(rules, name, found, margin) for name in Extremes._fields}
    new = {
        **old,
        **limits,
        "honest": {name: value.model_dump() for name, value in honest.items()},
        "measured_on": (
            f"the run {manifest.name} itself: {len(workers)} workers, {len(validators)} "
            f"validators, {rollouts} rollouts"
        ),
        "measured_tokens": tokens,
    }
    changed = [
        f"honest.{name}" for name in STATISTICS if honest[name] != getattr(rules.honest, name)
    ]
    changed += [name for name in Extremes._fields if limits[name] != old[name]]
    proposal = ToplocSection.model_validate(new)
    sizes = len(workers), len(validators), rollouts, tokens
    return Recalibration(proposal, tuple(changed), *sizes)


def _honest(
    rules: ToplocSection, name: str, found: Sequence[MeasuredRollout], margin: float
) -> HonestValue:
    known: HonestValue = getattr(rules.honest, name)
    agreeing = _agreeing(name, found, lambda part: abs(_mean(name, part)), known.mean)
    worst = max(agreeing.values())
    if worst <= known.mean:
        return known
    if worst >= CUT_SHARE * known.clip:
        raise ValueError(
            f"{name}: a mean of {worst:.3g} where values count up to {known.clip:.3g} only, so "
            "how far off they are was not measured; calibrate on a machine of the run "
            "(prime-node calibrate)"
        )
    variances = [_variance(name, [one for one in found if one.worker == peer]) for peer in agreeing]
    counts = sum(one.count(name) for one in found)
    inflated = 1 + STANDARD_ERRORS * sqrt(2 / (len(found) / len(agreeing)))
    variance = max(known.variance, inflated * median_low(variances), known.clip**2 / counts)
    mean = worst + STANDARD_ERRORS * sqrt(variance * len(agreeing) / counts)
    return HonestValue(
        mean=_rounded(margin * mean), variance=_rounded(margin**2 * variance), clip=known.clip
    )


def _limit(
    rules: ToplocSection, name: str, found: Sequence[MeasuredRollout], margin: float
) -> float:
    known: float = getattr(rules, name)
    agreeing = _agreeing(name, found, lambda part: max(one.values[name] for one in part), known)
    worst = max(agreeing.values())
    if worst <= known:
        return known
    raised = EXTREME_MARGIN * margin * worst
    if name == "exponent_mismatches_max":
        most = int(UNRELATED_SHARE * rules.top_k)
        if worst > most:
            raise ValueError(
                f"{name}: {worst:g} of {rules.top_k} values of most workers differ, as of other "
                "weights or another precision; no threshold helps"
            )
        return min(most, int(raised))
    if not isfinite(raised) or raised > 2**23:
        raise ValueError(f"{name}: {worst:.3g} exceeds rounding errors; no threshold helps")
    return _rounded(raised)


def _agreeing(
    name: str,
    found: Sequence[MeasuredRollout],
    value: Callable[[Sequence[MeasuredRollout]], float],
    known: float,
) -> dict[PeerId, float]:
    """Return the values of the agreeing workers, each the median of its validators' values.

    Raises ``ValueError`` when too few workers, or too few worker-validator pairs, agree.
    """
    pairs: defaultdict[PeerId, defaultdict[PeerId, list[MeasuredRollout]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in found:
        pairs[one.worker][one.validator].append(one)
    by_pair = [[value(part) for part in parts.values()] for parts in pairs.values()]
    workers = dict(zip(pairs, map(median_low, by_pair), strict=True))
    most = AGREE * max(median_low(workers.values()), known / AGREE)
    agreeing = {worker: own for worker, own in workers.items() if own <= most}
    every = [own for part in by_pair for own in part]
    near = sum(own <= most for own in every)
    if len(agreeing) < AGREEING_SHARE * len(workers) or near < AGREEING_SHARE * len(every):
        raise ValueError(
            f"{name}: {len(agreeing)} of {len(workers)} workers and {near} of {len(every)} pairs "
            f"of worker and validator are within {AGREE:g} times the median; find out which "
            "machines differ first"
        )
    return agreeing


def _mean(name: str, part: Sequence[MeasuredRollout]) -> float:
    total = sum(one.values[name] * one.count(name) for one in part)
    return total / max(1, sum(one.count(name) for one in part))


def _variance(name: str, part: Sequence[MeasuredRollout]) -> float:
    """Return the variance per value: a sum of ``n`` values has ``n`` times it."""
    mean = _mean(name, part)
    squares = [(one.values[name] - mean) ** 2 * one.count(name) for one in part]
    return sum(squares) / max(1, len(squares) - 1)


def _rounded(value: float) -> float:
    """Return ``value`` with three digits, rounded up, for readable recipes."""
    short = float(f"{value:.3g}")
    return short if short >= value else float(f"{value * 1.005:.3g}")
