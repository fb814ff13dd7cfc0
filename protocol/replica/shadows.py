"""Shadowed steps: reports of the trainers that repeat the leader's steps.

A trainer that does not lead computes each version from its parent and its batch, and reports the
policy digest that it got. Trainers of one kind of machine and software get the same bits. A version
is disputed when two reporters or more state one other digest, and more than confirm it. A single
report that differs decides nothing: nobody can know which of two trainers is wrong.

Members never make a disputed version final. They wait for a second confirmation while two other
trainers may report, at most for some epochs: silent trainers delay a run, and never stop it.
Reports arrive at different times, so two members may judge differently for a while. The votes for
pages decide for all.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from typing_extensions import override

from protocol.core.containers import BoundedDict, SizeGauge, Table
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId, Role
from protocol.ledger.ledger import Ledger
from protocol.membership.roster import Roster
from protocol.messages import CheckpointManifest, Signed, StepReport
from protocol.run.manifest import RunManifest

REPORTS_MAX = 64
"""Versions about which the reports of one trainer are kept: a flood displaces only its own."""

CONTRADICTION = 2
"""Different reports of one trainer about one version that are kept: they count for nothing."""

VERSIONS_KEPT = 16
"""Final versions whose reports are kept for people and late nodes."""

AGREEING_MIN = 2
"""Reporters of one digest that dispute a version, and confirmations that nobody waits beyond."""

SILENT_VERSIONS_MAX = 3
"""Versions without a report after which members wait for a trainer no longer, until it reports
again. So trainers that do not shadow delay the first versions of a run only."""

REPORT_EPOCHS = 6
"""Epochs that members wait for reports in addition to the time of two steps: the way of version,
bodies and report through the swarm. A guess."""

STEPS_AWAITED = 2
"""Steps that a shadow may need: one that it computes as the version arrives, and the version's."""


class Comparison(NamedTuple):
    """Statements about the policy of one version."""

    manifest: Signed[CheckpointManifest]
    confirmations: int
    """Trainers that state the published policy; its signer is one."""
    others: Mapping[bytes, int]
    """Reporters of each other policy."""

    @property
    def is_disputed(self) -> bool:
        """Return whether two reporters or more agree on another policy, and are the majority."""
        most = max(self.others.values(), default=0)
        return most >= AGREEING_MIN and most > self.confirmations

    @override
    def __str__(self) -> str:
        number, trainer = self.manifest.message.version, self.manifest.signer[-6:]
        most = max(self.others.values(), default=0)
        counts = f"{most} trainers computed another policy, {self.confirmations} this one"
        return f"version {number} of trainer …{trainer}: {counts}"


@dataclass(frozen=True, slots=True)
class _TakenReport:
    """An accepted report and the time of its acceptance, in unix seconds."""

    report: Signed[StepReport]
    taken_at: float


_Reports = dict[PeerId, BoundedDict[Digest, tuple[_TakenReport, ...]]]
"""Reports of each trainer, by the manifest that they are about."""


class StepReports:
    """Reports about the newest versions, and what they say together."""

    def __init__(self, manifest: RunManifest, ledger: Ledger, roster: Roster) -> None:
        self._manifest, self._roster = manifest, roster
        self._chain, self._branches = ledger.chain, ledger.branches
        trainers = manifest.genesis.trainers
        self._reports: _Reports = {PeerId(one): BoundedDict(REPORTS_MAX) for one in trainers}
        self._newest: dict[PeerId, int] = {}
        """Newest version that each trainer has reported about."""
        limit = CONTRADICTION * REPORTS_MAX
        self.tables: tuple[Table, ...] = tuple(
            SizeGauge("step_reports", limit, partial(_size, own)) for own in self._reports.values()
        )

    # Messages

    def offer(self, report: Signed[StepReport], now: float = -math.inf) -> Fault | bool:
        """Accept a report; False if it is known, too old, or about an unknown version."""
        about = Digest(report.message.manifest)
        own = self._reports.get(report.signer)
        if own is None:
            return Fault(FaultCode.NOT_A_TRAINER)
        version = self._version(about)
        if version is None:
            return False
        known = own.get(about, ())
        if len(known) >= CONTRADICTION or any(one.report == report for one in known):
            return False
        own[about] = (*known, _TakenReport(report, now))
        self._newest[report.signer] = max(version, self._newest.get(report.signer, 0))
        return True

    def _version(self, manifest: Digest) -> int | None:
        """Return the number of a version that reports may be about; None for any other one."""
        version = self._chain.place(manifest)
        if version is None and manifest in self._branches:
            version = self._branches.entries[manifest][0].message.version
        if version is None or version <= self._chain.final - VERSIONS_KEPT:
            return None
        return version

    def advance(self) -> None:
        """Forget reports about old versions, and about those that were dropped."""
        for own in self._reports.values():
            own.retain(lambda manifest, _: self._version(manifest) is not None)

    def all(self) -> list[Signed[StepReport]]:
        """Return every report that is held."""
        held = (entries for own in self._reports.values() for entries in own.values())
        return [entry.report for entries in held for entry in entries]

    def envelopes(self) -> list[bytes]:
        """Return the envelopes that a restart needs."""
        return [one.envelope for one in self.all()]

    def has_reported(self, trainer: PeerId, manifest: Digest) -> bool:
        """Return whether a trainer has reported about a version."""
        return trainer in self._reports and manifest in self._reports[trainer]

    def confirmed(self, manifest: Digest) -> set[PeerId]:
        """Return the other trainers whose only report about an accepted version states its policy.

        Empty for any other version.
        """
        place = self._chain.place(manifest)
        version = None if place is None else self._chain.get(place)
        if version is None:
            return set()
        policy = version.message.policy
        return {one for one, stated in self._stated(version).items() if stated == policy}

    # The rule

    def comparison(self, version: int, until: float = math.inf) -> Comparison | None:
        """Return what the reports that arrived until a time say about an accepted version."""
        manifest = self._chain.get(version)
        if manifest is None:
            return None
        stated = self._stated(manifest, until)
        policies = Counter(policy for policy in stated.values() if policy is not None)
        confirmations = 1 + policies.pop(manifest.message.policy, 0)
        return Comparison(manifest, confirmations, policies)

    def _stated(
        self, manifest: Signed[CheckpointManifest], until: float = math.inf
    ) -> dict[PeerId, bytes | None]:
        """Return the policy that each other trainer states; None for a contradiction."""
        stated: dict[PeerId, bytes | None] = {}
        for trainer, own in self._reports.items():
            known = [one for one in own.get(manifest.digest, ()) if one.taken_at <= until]
            if known and trainer != manifest.signer:
                is_one = len(known) < CONTRADICTION
                stated[trainer] = known[0].report.message.policy if is_one else None
        return stated

    def is_disputed(self, version: int) -> bool:
        """Return whether an accepted version is disputed."""
        comparison = self.comparison(version)
        return comparison is not None and comparison.is_disputed

    def dispute(self, final: int) -> Comparison | None:
        """Return the first disputed version after a final one, if any."""
        about = dict.fromkeys(one for own in self._reports.values() for one in own)
        places = (self._chain.place(one) for one in about)
        later = sorted(place for place in places if place is not None and place > final)
        found = map(self.comparison, later)
        return next((one for one in found if one is not None and one.is_disputed), None)

    def undisputed(self, final: int) -> int:
        """Return the newest version up to which none after a final one is disputed."""
        dispute = self.dispute(final)
        return self._chain.version if dispute is None else dispute.manifest.message.version - 1

    def awaiting(self, version: int, now: float, since: float, until: float = math.inf) -> bool:
        """Return whether a member should wait for reports about an accepted version.

        ``now``: time at which trainers must be live. ``since``: start of the member's watch.
        ``until``: later reports do not count.
        """
        comparison, entry = self.comparison(version, until), self._chain.checkpoints[version]
        assert comparison is not None
        if comparison.confirmations >= AGREEING_MIN or version == 0:
            return False
        if now - max(entry.taken_at, since) >= self.patience_seconds(version):
            return False
        stated = self._stated(comparison.manifest, until)
        silent = [
            one
            for one in self._reports
            if one not in stated and one != entry.manifest.signer and self._shadows(one, now)
        ]
        return bool(silent) and len(silent) + len(stated) >= AGREEING_MIN

    def _shadows(self, trainer: PeerId, now: float) -> bool:
        """Return whether a report of a trainer may be expected."""
        member = self._roster.get(trainer)
        if member is None or Role.TRAINER not in member.record.message.roles:
            return False
        is_recent = self._newest.get(trainer, 0) >= self._chain.version - SILENT_VERSIONS_MAX
        return is_recent and self._roster.is_live(trainer, now)

    def patience_seconds(self, version: int) -> float:
        """Return for how long a member waits for reports, from the time between two versions.

        At most ``stall_epochs``, the time after which a leader itself counts as stalled.
        """
        epochs, checkpoints = self._manifest.epochs, self._chain.checkpoints
        step_seconds = checkpoints[version].taken_at - checkpoints[version - 1].taken_at
        known_seconds = step_seconds if math.isfinite(step_seconds) else 0.0
        longest = epochs.stall_epochs * epochs.seconds
        return min(longest, REPORT_EPOCHS * epochs.seconds + STEPS_AWAITED * known_seconds)


def _size(own: BoundedDict[Digest, tuple[_TakenReport, ...]]) -> int:
    return sum(map(len, own.values()))
