"""Flow of a council member: reveals, pages and votes of each epoch."""

import asyncio
from collections.abc import Sequence

import structlog

from protocol.consensus.member import LATER_VOTE_SHARE, PROPOSE_SHARES, CouncilMember
from protocol.consensus.reveals import IN_TIME_SHARE
from protocol.core.containers import BoundedDict
from protocol.core.types import Digest, Topic
from protocol.messages import Message, Reveal
from protocol.replica.page_contents import PageContents
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import RoleContext

log = structlog.get_logger()

_DUE = (IN_TIME_SHARE, *PROPOSE_SHARES, LATER_VOTE_SHARE, 1.0)
"""Shares of an epoch at which a member may act without a message."""

FETCHES_MAX = 8
"""Pages whose commits are fetched at a time; an epoch has one to three, or more after a fork."""

WAIT_SECONDS_MIN = 0.001
"""A clock in unix seconds has steps, so a moment may be due that is not here yet."""


class CouncilFlow:
    """Flow of one key that has a seat, or may get one."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        replica, me = context.replica, context.peer_id
        contents = PageContents(replica, me, context.epoch(), context.policies.newest_version)
        self._member = CouncilMember(
            replica.pages, replica.intake.reveals, me, context.signer.prove, contents
        )
        self._fetching = BoundedDict[Digest, asyncio.Task[None]](FETCHES_MAX)
        """Fetches by page, each begun once."""
        self._refused: Digest | None = None
        """Newest version that is logged as refused."""
        last_vote = replica.pages.last_vote(me)
        if last_vote is not None:
            self._member.restore_vote(last_vote)

    async def run(self) -> None:
        """Act in every epoch until cancelled."""
        try:
            await self._run()
        finally:
            for fetch in self._fetching.values():
                fetch.cancel()
            await asyncio.gather(*self._fetching.values(), return_exceptions=True)

    async def _run(self) -> None:
        context = self._context
        while True:
            seen = context.changes.count
            epoch, share = self._time()
            if not context.network.may_have_voted(epoch):
                while messages := self._member.act(epoch, share):
                    await self._publish(messages)
                    epoch, share = self._time()
            self._catch_up(epoch)
            self._log_refused()
            due = next(one for one in _DUE if share < one)
            due_at = context.manifest.epoch_start(epoch) + due * context.epoch_seconds
            seconds = max(WAIT_SECONDS_MIN, due_at - context.clock.now())
            await context.changes.wait(seconds, seen)

    def _time(self) -> tuple[int, float]:
        """Return the epoch, and the share of it that has passed."""
        context, now = self._context, self._context.clock.now()
        epoch = context.manifest.epoch_at(now)
        return epoch, (now - context.manifest.epoch_start(epoch)) / context.epoch_seconds

    def _catch_up(self, epoch: int) -> None:
        """Fetch the commits that a page of this epoch lists and this node does not hold.

        A worker can send each member other commits than the rest, as many as one holds at a time.
        """
        entries = self._context.replica.ledger.commits.entries
        for node in self._context.replica.pages.pages_of(epoch):
            page = node.page
            if page is None or node.is_notarised or page.digest in self._fetching:
                continue
            if not all(Digest(commit) in entries for commit in page.message.commits):
                fetch = asyncio.create_task(self._context.network.catch_up(page.signer))
                fetch.add_done_callback(lambda _: self._context.changes.notify())
                self._fetching[page.digest] = fetch

    def _log_refused(self) -> None:
        """Log a version that this member does not make final for its batch, or a dispute."""
        replica = self._context.replica
        final = replica.ledger.chain.place(replica.lead.head)
        if final is None:
            return
        refusal, dispute = replica.batches.refusal(final), replica.shadows.dispute(final)
        found = refusal or dispute
        if found is None or found.manifest.digest == self._refused:
            return
        self._refused = found.manifest.digest
        log.warning(
            "version_refused",
            version=found.manifest.message.version,
            trainer=found.manifest.signer,
            reason=str(dispute if refusal is None else refusal.fault),
        )

    async def _publish(self, messages: Sequence[Message]) -> None:
        conditions = self._context.conditions
        for message in messages:
            try:
                await self._context.network.publish(Topic.PAGES, message)
            except StorageFullError as error:
                reason = f"disk full: {error}; no vote in the council, waiting for room"
                conditions.set("council", reason)
            except RefusedError as error:
                log.warning("not published", kind=message.kind, error=str(error))
            else:
                if not isinstance(message, Reveal):  # which is not stored
                    conditions.clear("council")
