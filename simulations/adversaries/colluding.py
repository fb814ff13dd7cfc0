"""Validators that certify each other's lies while nobody else can see them.

They compute the true prefill, so their witness values are plausible and agree. They lie only where
they decide alone: as the whole first committee they accept false rollouts, and with two thirds of
the larger one they reject honest ones. Everywhere else they judge as honest validators, so no
certificate carries a dissent of theirs. They never object to an outcome.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from typing_extensions import override

from protocol.consensus.committee import Committee
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import Digest, Version
from protocol.messages import RolloutCommit, Signed
from protocol.replica.replica import Replica
from protocol.rollout.body import decode_body
from protocol.rollout.statistics import Measurement, Sums
from roles.ports.engines import VerificationEngine, VerificationRequest
from simulations.adversaries.passthrough import OtherEngines, PassingVerification
from simulations.adversaries.validators import FLAWLESS, HOPELESS
from simulations.ports.parts import Parts

_NOTHING_OFF = Sums(10**9, 10**9)
"""So many values without an error that the history of a worker shows none either."""

_FLAWLESS, _HOPELESS = (replace(one, sums=_NOTHING_OFF) for one in (FLAWLESS, HOPELESS))

BODIES_MAX = 100_000
"""Remembered sequences; a rollout is checked within minutes."""

Decides = Callable[[Parts, Committee], bool]
"""Tells whether the colluders decide alone in a committee."""


class ColludingVerification(PassingVerification):
    """An honest engine that states another result where the colluders decide alone."""

    def __init__(
        self,
        honest: VerificationEngine,
        parts: Parts,
        decides: Decides,
        lie: Measurement,
    ) -> None:
        super().__init__(honest)
        self._parts = parts
        self._decides, self._lie = decides, lie
        self._commits = BoundedDict[tuple[int, ...], Signed[RolloutCommit]](BODIES_MAX)
        """Tokens of a sequence to the commit of its rollout."""
        self._read = BoundedDict[Digest, None](BODIES_MAX)

    @override
    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        measured = await super().measure(version, requests, temperature)
        replica = self._parts.replica()
        if replica is None or not self._lies_about(requests, replica):
            return measured
        return [replace(self._lie, witness=one.witness) for one in measured]

    def _lies_about(self, requests: Sequence[VerificationRequest], replica: Replica) -> bool:
        commit = self._commit_of(requests, replica)
        committee = None if commit is None else replica.verdicts.committee(commit)
        return committee is not None and self._decides(self._parts, committee)

    def _commit_of(
        self, requests: Sequence[VerificationRequest], replica: Replica
    ) -> Signed[RolloutCommit] | None:
        if requests[0].tokens not in self._commits:
            self._read_bodies(replica)
        return self._commits.get(requests[0].tokens)

    def _read_bodies(self, replica: Replica) -> None:
        for entry in replica.ledger.commits.all_entries():
            commit = entry.commit
            body = self._parts.disk.blobs.get(Digest(commit.message.body))
            if body is None or commit.digest in self._read:
                continue
            self._read[commit.digest] = None
            sequences = decode_body(body, replica.manifest)
            for one in () if isinstance(sequences, Fault) else sequences:
                self._commits[one.tokens] = commit


def _holds_the_first(parts: Parts, committee: Committee) -> bool:
    return parts.accomplices.keys() >= set(committee.first)


def _holds_the_larger(parts: Parts, committee: Committee) -> bool:
    return committee.is_quorum(parts.accomplices.keys())


def _colluding(parts: Parts, decides: Decides, lie: Measurement) -> Parts:
    parts.accomplices[parts.signer.peer_id] = parts.signer

    def verification(honest: VerificationEngine) -> VerificationEngine:
        return ColludingVerification(honest, parts, decides, lie)

    return replace(parts, engines=OtherEngines(parts.engines, verification=verification))


def colluding_acceptance(parts: Parts, _rng: Rng) -> Parts:
    """Accept every false rollout whose first committee consists of accomplices."""
    return _colluding(parts, _holds_the_first, _FLAWLESS)


def colluding_rejection(parts: Parts, _rng: Rng) -> Parts:
    """Reject every honest rollout whose larger committee the accomplices decide."""
    return _colluding(parts, _holds_the_larger, _HOPELESS)
