"""Late re-examination: a drawn member checks a decided rollout again, and objects if it is wrong.

A member that agrees sends nothing. Objections go to the other drawn members, and the one that ranks
first publishes the ``Overturn``. Fresh commits come first: a re-examination begins while no other
check runs. A body or policy that is no longer available leads to no objection.
"""

import asyncio
from collections.abc import Iterator

import structlog

from protocol.core.types import Digest, PeerId, Topic
from protocol.messages import ACCEPTED, Objection, Signed, Verdict
from protocol.replica.reviews import Review
from protocol.rollout.agreement import CERTAIN_REASONS, Agreement
from protocol.rollout.audit import SLASHABLE_REASONS, AuditResult
from protocol.rollout.fit import REWARD, REWARDS
from roles.ports.engines import EngineError, Unscorable
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import RoleContext
from roles.validator.check import RolloutVerifier

log = structlog.get_logger()

RETRY_EPOCHS = 1.0
"""Pause before a body is fetched again, and before an objection is sent again."""

_Key = tuple[Digest, bytes]
"""Commit, and the page that draws it."""


class Reexamination:
    """Re-examinations of one validator, one at a time."""

    def __init__(
        self, context: RoleContext, verifier: RolloutVerifier, computing: asyncio.Lock
    ) -> None:
        self._context, self._verifier, self._computing = context, verifier, computing
        self._agreement = Agreement.of(context.manifest.toploc)
        self._checked: dict[_Key, None] = {}
        self._own: dict[_Key, Signed[Objection]] = {}
        self._pause_until: dict[_Key, float] = {}
        self._complete_at: dict[_Key, float] = {}
        self._checking: asyncio.Task[None] | None = None
        self._sending: dict[tuple[Digest, PeerId], asyncio.Task[None]] = {}

    async def attend(self, *, is_busy: bool) -> None:
        """Check one drawn commit unless this node ``is_busy``; send and assemble objections."""
        due = {_key(one): one for one in self._due()}
        self._forget(due)
        for key, review in due.items():
            if self._context.replica.reviews.reason(key[0]) is not None:
                continue  # an overturn is here
            if not is_busy and self._checking is None and self._may_check(key):
                self._checking = asyncio.create_task(self._check(review))
                self._checking.add_done_callback(lambda _: self._context.changes.notify())
            if key in self._own:
                self._send(self._own[key], review)
            await self._publish(key, review)

    async def close(self) -> None:
        """End all checks and transmissions."""
        tasks = [*self._sending.values(), *filter(None, [self._checking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _due(self) -> Iterator[Review]:
        me = self._context.peer_id
        return (one for one in self._context.replica.reviews.due() if me in one.panel.members)

    def _forget(self, due: dict[_Key, Review]) -> None:
        tables = self._checked, self._own, self._pause_until, self._complete_at
        for table in tables:
            for key in [one for one in table if one not in due]:
                del table[key]
        for task in [self._checking, *self._sending.values()]:
            if task is not None and task.done():
                task.result()  # raises on a bug
        if self._checking is not None and self._checking.done():
            self._checking = None
        self._sending = {key: task for key, task in self._sending.items() if not task.done()}

    # Check

    def _may_check(self, key: _Key) -> bool:
        now = asyncio.get_running_loop().time()
        return key not in self._checked and self._pause_until.get(key, 0.0) <= now

    async def _check(self, review: Review) -> None:
        key = _key(review)
        now = asyncio.get_running_loop().time()
        self._pause_until[key] = now + RETRY_EPOCHS * self._context.epoch_seconds
        finding = await self._examine(review)
        if finding is None:
            return  # tried again while the commit may be objected to
        self._checked[key] = None
        reason = "" if isinstance(finding, Unscorable) else self.objection(review, finding)
        if reason:
            await self._object(review, reason)

    async def _examine(self, review: Review) -> AuditResult | Unscorable | None:
        """Repeat the check of the committee; None while something for it is missing."""
        replica = self._context.replica
        entry = replica.ledger.commits.known(Digest(review.receipt.commit))
        certificate = None if entry is None else entry.certificate
        page = None if certificate is None else replica.pages.page(certificate.message.page)
        if entry is None or page is None or self._verifier.policy(entry.commit) is None:
            return None
        me, receipt = self._context.peer_id, review.receipt
        others = dict.fromkeys([receipt.worker, *receipt.checkers, *review.panel.members])
        sources = [peer for peer in others if peer != me]
        body = await self._context.network.fetch_body(entry.commit, sources)
        if body is None:
            return None
        async with self._computing:
            try:
                return await self._verifier.examine(entry.commit, page, body)
            except EngineError as error:
                log.warning("reexamination failed", error=str(error))
                return None

    def objection(self, review: Review, finding: AuditResult) -> str:
        """Return the reason to object to an outcome; empty if it may be right.

        Rewards and checks whose failure is certain count; on all others honest members may differ.
        """
        decided = review.receipt.reason
        if decided != ACCEPTED:
            is_wrong = decided in SLASHABLE_REASONS and finding.reason == ACCEPTED
            return ACCEPTED if is_wrong else ""
        if finding.reason in REWARDS:
            return REWARD
        if finding.reason not in CERTAIN_REASONS:
            return ""
        verdicts = self._deciding(review)
        if len(verdicts) < len(review.receipt.checkers):
            return ""
        own = finding.verdict(Digest(review.receipt.commit), verdicts[0].page, bytes(32))
        is_certain = all(self._agreement.contradicts(own, one) for one in verdicts)
        return finding.reason if is_certain else ""

    def _deciding(self, review: Review) -> list[Verdict]:
        """Return the verdicts that decided, as far as they are here."""
        replica, commit = self._context.replica, Digest(review.receipt.commit)
        entry = replica.ledger.commits.known(commit)
        if entry is None or entry.certificate is None:
            return []
        held = replica.verdicts.pool(commit, entry.certificate.message.page).verdicts
        verdicts = [held[peer].message for peer in review.receipt.checkers if peer in held]
        return [one for one in verdicts if one.accept is (review.receipt.reason == ACCEPTED)]

    # Objections

    async def _object(self, review: Review, reason: str) -> None:
        commit, page = _key(review)
        message = Objection(commit=commit, page=page, reason=reason)
        try:
            self._own[commit, page] = await self._context.network.record(message)
        except (RefusedError, StorageFullError) as error:
            log.warning("objection not stored", commit=commit.hex()[:12], error=str(error))
            return
        log.warning(
            "outcome objected",
            commit=commit.hex()[:12],
            worker=review.receipt.worker[-8:],
            decided=review.receipt.reason,
            reason=reason,
        )

    def _send(self, objection: Signed[Objection], review: Review) -> None:
        """Send an objection to the other members, each again after a pause."""
        for peer in review.panel.members:
            key = objection.digest, peer
            if peer != self._context.peer_id and key not in self._sending:
                self._sending[key] = asyncio.create_task(self._deliver(objection, peer))

    async def _deliver(self, objection: Signed[Objection], peer: PeerId) -> None:
        await self._context.network.send(peer, objection.envelope)
        # The receiver may not have had the page yet, so a confirmation ends nothing.
        await asyncio.sleep(RETRY_EPOCHS * self._context.epoch_seconds)

    async def _publish(self, key: _Key, review: Review) -> None:
        """Publish an overturn; the member of rank r waits r half epochs for those before it."""
        context = self._context
        overturn = context.replica.reviews.assembled(review)
        if overturn is None:
            return
        now = asyncio.get_running_loop().time()
        complete_at = self._complete_at.setdefault(key, now)
        place = review.panel.members.index(context.peer_id)
        if now < complete_at + place * context.epoch_seconds / 2:
            return
        try:
            await context.network.publish(Topic.CERTIFICATES, overturn)
        except (RefusedError, StorageFullError) as error:
            log.warning("overturn not published", commit=key[0].hex()[:12], error=str(error))
            self._complete_at[key] = now + RETRY_EPOCHS * context.epoch_seconds


def _key(review: Review) -> _Key:
    return Digest(review.receipt.commit), review.page.digest
