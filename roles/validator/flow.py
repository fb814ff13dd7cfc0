"""Flow of the validator role: check assigned rollouts, seal verdicts, publish certificates.

Each tick decides from the replica alone, so a lost message or a restart costs only time. A verdict
stored before a crash is never signed a second time.
"""

import asyncio
from collections import Counter

import structlog

from protocol.consensus.committee import Committee
from protocol.consensus.page_node import PageNode
from protocol.consensus.verdict_pool import VerdictPool
from protocol.core.types import Digest, PeerId, Topic
from protocol.ledger.commits import CommitState, Entry
from protocol.ledger.reputation import has_reputation
from protocol.messages import RolloutCommit, Signed, Verdict
from protocol.rollout.audit import AuditResult
from roles.ports.engines import EngineError, Environment, Unscorable, VerificationEngine
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import RoleContext
from roles.runtime.retry import Failures, pause_epochs
from roles.validator.check import RolloutVerifier
from roles.validator.exchange import VerdictExchange
from roles.validator.reexamination import Reexamination

log = structlog.get_logger()

CHECKS_AT_ONCE = 16
CHECKS_PER_WORKER = 2
"""Concurrent checks, in total and per worker. Bodies are fetched while another one is measured; the
engine verifies one at a time. A worker that withholds bodies must not use up all check slots."""

UNTRUSTED_CHECKS = 3
"""Concurrent checks of all untrusted workers together, under a fifth of the total: keys are free.
A worker gains reputation with its first certificate, and waits for those before it. A guess."""

RETRY_EPOCHS = 1.0
"""Pause before a missing body is fetched again."""


class ValidatorFlow:
    """Flow of one validator."""

    def __init__(
        self, context: RoleContext, engine: VerificationEngine, environment: Environment
    ) -> None:
        self._context = context
        self._examination = RolloutVerifier(context, engine, environment)
        self._checking: dict[Digest, asyncio.Task[None]] = {}
        self._workers: Counter[PeerId] = Counter()
        self._attempts: Counter[Digest] = Counter()
        self._withheld: Counter[PeerId] = Counter()
        """Failed fetches of bodies per worker, while it has an open commit."""
        self._retry_at: dict[Digest, float] = {}
        self._failed: Counter[Digest] = Counter()
        """Checks that failed on this node, by commit."""
        self._unscorable: dict[Digest, None] = {}
        """Commits without a score, on which this node gives no verdict."""
        self._failures = Failures(context, "validator")
        self._doubts: tuple[str, ...] = ()
        """Directions of the run's rules that were in doubt at the last look."""
        self._doubts_told_in = -1
        self._exchange = VerdictExchange(context)
        self._decided_at: dict[Digest, float] = {}
        self._for_others: dict[Digest, PageNode] = {}
        """Commits whose committee excludes this node, with the page that drew it."""
        self._computing = asyncio.Lock()
        self._reexamination = Reexamination(context, self._examination, self._computing)

    async def run(self) -> None:
        """Work until cancelled."""
        context = self._context
        try:
            while True:
                seen = context.changes.count
                self._forget()
                self._tell_doubts()
                for entry in self._due():
                    await self._attend(entry)
                await self._reexamination.attend(is_busy=bool(self._checking))
                await context.tick(seen)
        finally:
            tasks = list(self._checking.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._exchange.close()
            await self._reexamination.close()

    def _tell_doubts(self) -> None:
        """Once an epoch, log thresholds that begin or cease to be in doubt."""
        context, epoch = self._context, self._context.epoch()
        if epoch == self._doubts_told_in:
            return
        self._doubts_told_in = epoch
        doubts = {one.direction: one for one in context.replica.ledger.decisions().fit.misfits}
        for direction, doubt in doubts.items():
            if direction not in self._doubts:
                log.warning("rule in doubt", direction=direction, detail=str(doubt))
        for direction in self._doubts:
            if direction not in doubts:
                log.info("rule no longer in doubt", direction=direction)
        self._doubts = tuple(doubts)

    def _due(self) -> list[Entry]:
        """Return the commits whose committee may include this node, in order of priority.

        Trusted workers come first, then untrusted ones by ascending number of withheld bodies: each
        fetch of a withheld body occupies a check slot. Among equals, the least tried come first.
        """
        replica = self._context.replica
        due: list[Entry] = []
        tip = replica.pages.tip()
        for entry in replica.ledger.commits.open_entries():
            page = replica.pages.drawing(entry.commit.digest, tip)
            if not entry.timely or page is None:
                continue
            # In a large swarm nearly all commits are for other validators, and may be thousands.
            if self._for_others.get(entry.commit.digest) is not page:
                due.append(entry)
        ranks = {
            worker: (0,) if self._has_reputation(worker) else (1, self._withheld[worker])
            for worker in map(_worker, due)
        }
        return sorted(
            due, key=lambda entry: (ranks[_worker(entry)], self._attempts[entry.commit.digest])
        )

    def _has_reputation(self, worker: PeerId) -> bool:
        return has_reputation(worker, self._context.manifest, self._context.replica.ledger)

    def _forget(self) -> None:
        ledger = self._context.replica.ledger
        entries = ledger.commits.entries
        tables = self._retry_at, self._decided_at, self._attempts, self._failed
        for table in (*tables, self._for_others, self._unscorable):
            for commit in [key for key in table if key not in entries]:
                del table[commit]
        for worker in [worker for worker in self._withheld if not ledger.commits.in_flight(worker)]:
            del self._withheld[worker]
        waiting = (entries[commit].state is CommitState.COMMITTED for commit in self._failed)
        if self._failures.count and not any(waiting):
            self._failures.end()  # other validators settled the failed commits
        self._exchange.forget(entries)
        for task in self._checking.values():
            if task.done():
                task.result()  # raises on a bug
        self._checking = {key: task for key, task in self._checking.items() if not task.done()}
        self._workers = Counter(
            entries[commit].commit.signer for commit in self._checking if commit in entries
        )

    async def _attend(self, entry: Entry) -> None:
        """Process one commit without an outcome: check, deliver the verdict, certify."""
        context, digest = self._context, entry.commit.digest
        if entry.state is not CommitState.COMMITTED:
            return  # settled while earlier commits were processed
        committee = context.replica.verdicts.committee(entry.commit)
        if committee is None:
            return
        if context.peer_id not in committee.escalated:
            self._for_others[digest] = committee.page
            return
        wide = self._escalated(entry, committee)
        members = committee.escalated if wide else committee.first
        verdict = self._own_verdict(entry, committee.page)
        if verdict is not None:
            self._exchange.deliver(entry.commit, verdict, members, is_escalated=wide)
        elif context.peer_id in members and digest not in self._unscorable:
            self._start_check(entry, members, committee.page)
        await self._certify(entry, committee)

    def _escalated(self, entry: Entry, committee: Committee) -> bool:
        """Return whether the larger committee checks a commit, as far as this node sees.

        A member outside the first committee sees a dispute by the seals of its members: they send
        their verdicts only to members that have sealed theirs.
        """
        age_epochs = self._context.epoch() - committee.page.epoch
        if age_epochs > self._context.manifest.committee.escalate_after_epochs:
            return True
        pool = self._pool(entry, committee.page)
        is_called = self._context.peer_id not in committee.first and pool.calls(committee)
        return is_called or pool.disputed(committee)

    def _pool(self, entry: Entry, page: PageNode) -> VerdictPool:
        return self._context.replica.verdicts.pool(entry.commit.digest, page.digest)

    # Checking

    def _start_check(self, entry: Entry, members: tuple[PeerId, ...], page: PageNode) -> None:
        digest, worker = entry.commit.digest, entry.commit.signer
        waits = self._retry_at.get(digest, 0.0) > asyncio.get_running_loop().time()
        unsure = self._context.network.may_have_judged(entry.epoch)
        if digest in self._checking or waits or unsure or not self._has_place(worker):
            return
        if not self._is_due(entry):
            return
        self._workers[worker] += 1
        check = self._checking[digest] = asyncio.create_task(self._check(entry, members, page))
        check.add_done_callback(lambda _: self._context.changes.notify())  # its slot is free

    def _has_place(self, worker: PeerId) -> bool:
        if len(self._checking) >= CHECKS_AT_ONCE or self._workers[worker] >= CHECKS_PER_WORKER:
            return False
        if self._has_reputation(worker):
            return True
        busy = self._workers.items()
        untrusted = sum(count for other, count in busy if not self._has_reputation(other))
        return untrusted < UNTRUSTED_CHECKS

    def _is_due(self, entry: Entry) -> bool:
        """Return whether a check is useful and all its inputs but the body are on this node."""
        ledger = self._context.replica.ledger
        unslashed = not ledger.workers.is_slashed(entry.commit.signer)
        return unslashed and self._examination.policy(entry.commit) is not None

    async def _check(self, entry: Entry, members: tuple[PeerId, ...], page: PageNode) -> None:
        context, commit = self._context, entry.commit
        pause_seconds = RETRY_EPOCHS * context.epoch_seconds
        self._retry_at[commit.digest] = asyncio.get_running_loop().time() + pause_seconds
        self._attempts[commit.digest] += 1
        body = await context.network.fetch_body(
            commit, [commit.signer, *(peer for peer in members if peer != context.peer_id)]
        )
        if body is None:
            self._withheld[commit.signer] += 1
            return
        self._withheld.pop(commit.signer, None)
        async with self._computing:
            if self._is_settled(entry, page):
                return  # settled while this check waited for the engine
            began_at = asyncio.get_running_loop().time()
            try:
                finding = await self._examination.examine(commit, page, body)
            except Exception as error:  # noqa: BLE001 - one rollout must not stop all other checks
                self._fail(commit, error)
                return
            check_seconds = asyncio.get_running_loop().time() - began_at
        if isinstance(finding, Unscorable):
            # Other validators may get a score, so this is no fault of the worker.
            self._unscorable[commit.digest] = None
            log.warning(
                "verdict withheld",
                commit=commit.digest.hex()[:12],
                worker=commit.signer[-8:],
                reason=finding.reason,
            )
            return
        if finding is None:
            return
        context.durations.checks.add(check_seconds)
        if await self._give_verdict(commit, page, finding):
            log.info(
                "rollout checked",
                commit=commit.digest.hex()[:12],
                worker=commit.signer[-8:],
                reason=finding.reason,
                detail=finding.detail,
                check_seconds=round(check_seconds, 3),
            )

    def _fail(self, commit: Signed[RolloutCommit], error: Exception) -> None:
        """Postpone a check that failed on this node: the failure says nothing about the rollout.

        The pause grows with each failure, because a body may always fail. Other checks continue.
        """
        self._failures.note(EngineError.of(error))
        self._failed[commit.digest] += 1
        pause_seconds = pause_epochs(self._failed[commit.digest]) * self._context.epoch_seconds
        self._retry_at[commit.digest] = asyncio.get_running_loop().time() + pause_seconds

    def _is_settled(self, entry: Entry, page: PageNode) -> bool:
        """Return whether this node's verdict is stored or an outcome is known."""
        given = self._own_verdict(entry, page) is not None
        return given or entry.state is not CommitState.COMMITTED

    def _own_verdict(self, entry: Entry, page: PageNode) -> Signed[Verdict] | None:
        return self._pool(entry, page).verdicts.get(self._context.peer_id)

    async def _give_verdict(
        self, commit: Signed[RolloutCommit], page: PageNode, finding: AuditResult
    ) -> bool:
        """Sign and store the verdict; False when that was not possible."""
        context = self._context
        nonce = self._exchange.nonce(commit.digest, page.digest)
        try:
            await context.network.record(finding.verdict(commit.digest, page.digest, nonce))
        except StorageFullError as error:
            context.conditions.set("validator", f"disk full: {error}; waiting for room")
            return False
        except RefusedError as error:
            log.warning("verdict refused", commit=commit.digest.hex()[:12], error=str(error))
            return False
        self._failures.end()
        return True

    # Certificates

    async def _certify(self, entry: Entry, committee: Committee) -> None:
        """Publish the outcome; the member of rank r waits r half epochs for those before it."""
        context, digest = self._context, entry.commit.digest
        outcome = self._pool(entry, committee.page).outcome(committee)
        if outcome is None:
            return
        members = committee.escalated if outcome.escalated else committee.first
        if context.peer_id not in members:
            return
        now = asyncio.get_running_loop().time()
        decided_at = self._decided_at.setdefault(digest, now)
        if now < decided_at + members.index(context.peer_id) * context.epoch_seconds / 2:
            return
        try:
            certificate = outcome.certificate(digest, committee)
            await context.network.publish(Topic.CERTIFICATES, certificate)
        except (RefusedError, StorageFullError) as error:
            log.warning("certificate not published", commit=digest.hex()[:12], error=str(error))
            self._decided_at[digest] = now + RETRY_EPOCHS * context.epoch_seconds


def _worker(entry: Entry) -> PeerId:
    return entry.commit.signer
