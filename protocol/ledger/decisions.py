"""The rollouts with a certificate, by worker, and what they say of the run's thresholds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.fit import Decided, Fit, fit_of
from protocol.ledger.commits import CommitState, Entry
from protocol.recipe import ToplocSection
from protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decided rollouts of the commits that are not forgotten, the oldest of a worker first."""

    workers: dict[PeerId, list[Decided]] = field(default_factory=dict)
    fit: Fit = field(default_factory=Fit)

    @classmethod
    def of(cls, rules: ToplocSection, entries: Mapping[Digest, Entry]) -> "Decisions":
        """Return those of a ledger's ``entries``."""
        outcomes = [(one.epoch, key, one) for key, one in entries.items() if one.certificate]
        workers: dict[PeerId, list[Decided]] = {}
        for _, _, entry in sorted(outcomes, key=lambda item: item[:2]):
            accepted = entry.state is CommitState.CERTIFIED
            rollout = Decided(accepted, entry.reason, entry.measured)
            workers.setdefault(entry.commit.signer, []).append(rollout)
        return cls(workers, fit_of(rules, workers))
