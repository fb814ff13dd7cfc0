"""Rounds of several trainers: the leader's plans, the trainers' results, and their versions.

The leader plans a round from a version: a batch and the trainers that share it. Each of them
publishes a result, a file with the difference of its weights. The version after it contains the
results that its outer step took; any trainer that has the files can repeat the step.

A version has all fields of its plan, so every node recomputes the plan's message id, and checks the
signatures of the results with it. No node needs the plan itself for that. A result that arrives
before its plan is ignored; the next synchronisation sends the plan first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from protocol.consensus.pages import PageTree
from protocol.core.containers import BoundedDict, SizeGauge, Table
from protocol.core.crypto import Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.ledger.chain import TERM_MAX
from protocol.ledger.ledger import Ledger
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import (
    ROUND_TRAINERS_MAX,
    CheckpointManifest,
    Contribution,
    Opened,
    RoundPlan,
    RoundResult,
    Signed,
    TrainingRound,
    message_id,
    open_envelope,
    signature_of,
    with_signature,
)
from protocol.run.manifest import RunManifest

PLANS_MAX = 4
"""Plans of one leader that are kept, with their results: a flood displaces only its own."""

VERSIONS_KEPT = 2
"""Newest versions whose rounds are kept; all after the final one, in addition, since the next
leader begins there."""


@dataclass(slots=True)
class _OpenRound:
    """A plan, and the first result of each of its trainers."""

    plan: Signed[RoundPlan]
    results: dict[PeerId, Signed[RoundResult]] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[int, Digest]:
        """Order of the plans of one leader for one version: the highest counts on every node."""
        return self.plan.message.planned_at, self.plan.digest


_Rounds = BoundedDict[tuple[bytes, int], _OpenRound]
"""Rounds of one leader by version and term."""


class Rounds:
    """Plans and results of the rounds from the newest versions."""

    def __init__(
        self,
        manifest: RunManifest,
        ledger: Ledger,
        pages: PageTree,
        verify: Verifier,
        opened: Opened | None = None,
    ) -> None:
        self._manifest, self._chain, self._pages = manifest, ledger.chain, pages
        self._verify, self._opened = verify, opened
        self._run_id, self._outer = manifest.run_id, manifest.grpo.outer
        trainers = manifest.genesis.trainers
        self._rounds: dict[PeerId, _Rounds] = {
            PeerId(one): BoundedDict(PLANS_MAX) for one in trainers
        }
        results_max = PLANS_MAX * ROUND_TRAINERS_MAX
        self.tables: tuple[Table, ...] = (
            *(
                SizeGauge("round_plans", PLANS_MAX, partial(len, own))
                for own in self._rounds.values()
            ),
            *(
                SizeGauge("round_results", results_max, partial(_results, own))
                for own in self._rounds.values()
            ),
        )

    # Messages

    def offer_plan(self, plan: Signed[RoundPlan], now: float) -> Fault | bool:
        """Accept a plan; False if it is known, outdated, or begins at an old version."""
        message = plan.message
        fault = self._plan_fault(plan)
        if fault is not None:
            return fault
        ahead_seconds = message.planned_at / 1000 - now
        if ahead_seconds > CLOCK_SKEW_SECONDS_MAX:
            return Fault(FaultCode.CLOCK_SKEW, f"planned {ahead_seconds:.1f} s ahead of our clock")
        own, key = self._rounds[plan.signer], (message.parent, message.term)
        offered = _OpenRound(plan)
        if not self._is_near(message.parent) or (key in own and own[key].rank >= offered.rank):
            return False
        own.set_newest(key, offered)
        return True

    def offer_result(self, result: Signed[RoundResult]) -> Fault | bool:
        """Accept a result; False if its plan is unknown, or has a result of the trainer."""
        if result.signer not in self._rounds:
            return Fault(FaultCode.NOT_A_TRAINER)
        if self._outer is None:
            return Fault(FaultCode.BAD_ROUND, "the run has no rounds")
        found = self._round(Digest(result.message.plan))
        if found is None:
            return False
        if result.signer not in self._keys(found.plan.message.trainers):
            return Fault(FaultCode.BAD_ROUND, "its signer is not in the plan")
        if result.signer in found.results:
            return False
        found.results[result.signer] = result
        return True

    def advance(self) -> None:
        """Forget the rounds of versions that are no longer new."""
        for own in self._rounds.values():
            own.retain(lambda key, _: self._is_near(key[0]))

    def _is_near(self, parent: bytes) -> bool:
        """Return whether a round from a version may still make one; a version may be unknown."""
        place, chain = self._chain.place(parent), self._chain
        return place is None or place >= min(chain.version + 1 - VERSIONS_KEPT, chain.final)

    def all(self) -> list[Signed[RoundPlan] | Signed[RoundResult]]:
        """Return every message that is held, the plans first."""
        rounds = list(self._all_rounds())
        results = (result for one in rounds for result in one.results.values())
        return [*(one.plan for one in rounds), *results]

    def _all_rounds(self) -> Iterator[_OpenRound]:
        for own in self._rounds.values():
            yield from own.values()

    def _round(self, plan: Digest) -> _OpenRound | None:
        return next((one for one in self._all_rounds() if one.plan.digest == plan), None)

    # Queries

    def plan(self, parent: Digest) -> Signed[RoundPlan] | None:
        """Return the newest plan for a version of the trainer that leads, by the newest page."""
        term = self._pages.root.term
        found = self._rounds[self._manifest.leader(term)].get((parent, term))
        return None if found is None else found.plan

    def results(self, plan: Digest) -> dict[PeerId, Signed[RoundResult]]:
        """Return the results of a plan by trainer, in the order of the plan."""
        found = self._round(plan)
        if found is None:
            return {}
        keys = self._keys(found.plan.message.trainers)
        return {one: found.results[one] for one in keys if one in found.results}

    def contributors(self, message: CheckpointManifest) -> list[PeerId]:
        """Return the trainers whose results a version contains, in its order."""
        return contributors_of(self._manifest, message)

    def contribution(self, version: Signed[CheckpointManifest], place: int) -> Signed[RoundResult]:
        """Return the signed result behind a contribution of an accepted version.

        ``place``: that of the trainer in the genesis. Raises ``KeyError`` if it did not contribute.
        """
        made = version.message.round
        found = {} if made is None else {one.trainer: one for one in made.contributions}
        contribution = found[place]
        return self._result(self._planned(version), contribution)

    def training_round(
        self, plan: Signed[RoundPlan], results: Mapping[PeerId, Signed[RoundResult]]
    ) -> TrainingRound:
        """Return the round of a version that contains these results of a plan.

        Raises ``ValueError`` if there are none.
        """
        message = plan.message
        keyed = zip(message.trainers, self._keys(message.trainers), strict=True)
        return TrainingRound(
            planned_at=message.planned_at,
            trainers=message.trainers,
            contributions=tuple(
                _contribution(place, results[key]) for place, key in keyed if key in results
            ),
        )

    def _keys(self, places: Sequence[int]) -> list[PeerId]:
        return [PeerId(self._manifest.genesis.trainers[place]) for place in places]

    # Rules

    def fault(self, version: Signed[CheckpointManifest]) -> Fault | None:
        """Check the round of a version, and the signatures of all results in it."""
        message, made = version.message, version.message.round
        if self._outer is None or not message.version:
            return None if made is None else Fault(FaultCode.BAD_ROUND, "no round makes it")
        if made is None or not message.parent:
            return Fault(FaultCode.BAD_ROUND, "a version of this run names its round and parent")
        fault = self._trainers_fault(version.signer, message.term, made.trainers)
        if fault is not None:
            return fault
        plan = self._planned(version)
        for one in made.contributions:
            envelope = self._result(plan, one).envelope
            opened = open_envelope(envelope, RoundResult, self._run_id, self._verify, self._opened)
            if isinstance(opened, Fault):
                detail = f"trainer {one.trainer} has not signed this result for its round"
                return Fault(FaultCode.BAD_ROUND, detail)
        return None

    def _plan_fault(self, plan: Signed[RoundPlan]) -> Fault | None:
        """Check a plan without knowing any version."""
        message, grpo = plan.message, self._manifest.grpo
        fault = self._trainers_fault(plan.signer, message.term, message.trainers)
        if fault is not None:
            return fault
        steps, size = grpo.batch_steps(len(message.trainers)), len(message.batch)
        least, most = steps * grpo.rollouts_per_step, steps * grpo.batch_max
        if not least <= size <= most:
            detail = f"{size} rollouts instead of {least} to {most}"
            return Fault(FaultCode.BAD_ROUND, detail)
        return None

    def _trainers_fault(self, signer: PeerId, term: int, places: Sequence[int]) -> Fault | None:
        """Check the leader and the trainers of a round."""
        if signer not in self._rounds:
            return Fault(FaultCode.NOT_A_TRAINER)
        if term > TERM_MAX or self._manifest.leader(term) != signer:
            return Fault(FaultCode.OTHER_TERM, f"term {term} is not its author's")
        if self._outer is None:
            return Fault(FaultCode.BAD_ROUND, "the run has no rounds")
        if len(places) > self._outer.trainers:
            detail = f"{len(places)} trainers, at most {self._outer.trainers} are allowed"
            return Fault(FaultCode.BAD_ROUND, detail)
        if max(places) >= len(self._manifest.genesis.trainers):
            return Fault(FaultCode.BAD_ROUND, "the genesis has no such trainer")
        keys = self._keys(places)
        if keys[0] != signer or len(set(keys)) < len(keys):
            return Fault(
                FaultCode.BAD_ROUND, "the leader is not first, or a trainer is there twice"
            )
        return None

    def _planned(self, version: Signed[CheckpointManifest]) -> Digest:
        """Return the message id of the plan behind a version with a round."""
        message, made = version.message, version.message.round
        assert made is not None
        plan = RoundPlan(
            parent=message.parent,
            term=message.term,
            batch=message.batch,
            page=message.page,
            omitted=message.omitted,
            trainers=made.trainers,
            reloaded=message.reloaded,
            planned_at=made.planned_at,
        )
        return message_id(plan, self._run_id, version.signer)

    def _result(self, plan: Digest, contribution: Contribution) -> Signed[RoundResult]:
        """Return the result of a contribution, with its signature, which is not checked."""
        result = RoundResult(
            plan=plan,
            difference=contribution.difference,
            index=contribution.index,
            index_bytes=contribution.index_bytes,
            total_bytes=contribution.total_bytes,
        )
        (signer,) = self._keys([contribution.trainer])
        return with_signature(result, self._run_id, signer, contribution.signature)


def contributors_of(manifest: RunManifest, version: CheckpointManifest) -> list[PeerId]:
    """Return the trainers whose results an accepted version contains, in its order."""
    made = () if version.round is None else version.round.contributions
    return [PeerId(manifest.genesis.trainers[one.trainer]) for one in made]


def _contribution(place: int, signed: Signed[RoundResult]) -> Contribution:
    result = signed.message
    return Contribution(
        trainer=place,
        difference=result.difference,
        index=result.index,
        index_bytes=result.index_bytes,
        total_bytes=result.total_bytes,
        signature=signature_of(signed),
    )


def _results(own: _Rounds) -> int:
    return sum(len(one.results) for one in own.values())
