"""Exchange of seals and verdicts between the members of a committee.

A member first sends its seal, again and again until it holds the verdict of the receiver. It sends
its verdict only to members whose seals it holds, so no member can copy the values of another. The
worker gets it once all present members have sealed theirs, or once the committee has escalated: the
worker could compute the values itself.
"""

import asyncio
from collections.abc import Container, Sequence

from protocol.consensus.seals import Statement, seal_of
from protocol.core.crypto import digest, signing_bytes
from protocol.core.types import Digest, PeerId
from protocol.messages import RolloutCommit, Signed, Verdict, VerdictSeal, seal
from roles.runtime.context import RoleContext

RETRY_EPOCHS = 1.0
"""Pause before a seal, or a verdict to an unresponsive peer, is sent again."""

_NONCE_KIND = "verdict-nonce"
"""No message has this kind, so nobody learns such a signature."""

_Key = tuple[Digest, PeerId, type[Verdict] | type[VerdictSeal]]


class VerdictExchange:
    """Seals and verdicts that one validator sends."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._seals: dict[Digest, dict[Digest, Signed[VerdictSeal]]] = {}
        """Own seals by commit and verdict."""
        self._delivered: dict[Digest, dict[tuple[Digest, PeerId], None]] = {}
        """Verdicts and the peers that have confirmed them, by commit."""
        self._sending: dict[_Key, asyncio.Task[None]] = {}

    def nonce(self, commit: Digest, page: bytes) -> bytes:
        """Return the nonce of this node's verdict: nobody else can compute it.

        It is the same after a restart, so a lost verdict does not become two seals.
        """
        context = self._context
        signed = signing_bytes(_NONCE_KIND, context.replica.run_id, commit + page)
        return digest(context.signer.sign(signed))

    def deliver(
        self,
        commit: Signed[RolloutCommit],
        verdict: Signed[Verdict],
        members: Sequence[PeerId],
        *,
        is_escalated: bool,
    ) -> None:
        """Send what the present members of the committee, and the worker, may have by now."""
        pool = self._context.replica.verdicts.pool(commit.digest, verdict.message.page)
        others = [peer for peer in members if peer != self._context.peer_id]
        for peer in others:
            if peer not in pool.verdicts:
                self._send(verdict, peer, self._seal(verdict))
            if peer in pool.seals:
                self._send(verdict, peer, verdict)
        if is_escalated or all(peer in pool.seals for peer in others):
            self._send(verdict, commit.signer, verdict)

    def forget(self, commits: Container[Digest]) -> None:
        """Forget what was sent about all other commits; raise what a task raised."""
        for task in [task for task in self._sending.values() if task.done()]:
            task.result()  # raises on a bug
        self._sending = {key: task for key, task in self._sending.items() if not task.done()}
        for table in (self._seals, self._delivered):
            for commit in [key for key in table if key not in commits]:
                del table[commit]

    async def close(self) -> None:
        """End all transmissions."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _seal(self, verdict: Signed[Verdict]) -> Signed[VerdictSeal]:
        context = self._context
        made = self._seals.setdefault(Digest(verdict.message.commit), {})
        if verdict.digest not in made:
            own = seal_of(verdict.message, context.peer_id)
            made[verdict.digest] = seal(own, context.replica.run_id, context.signer)
        return made[verdict.digest]

    def _send(self, verdict: Signed[Verdict], peer: PeerId, statement: Statement) -> None:
        """Send a verdict or its seal, unless that is under way or confirmed."""
        key = (verdict.digest, peer, type(statement.message))
        if key not in self._sending and not self._is_confirmed(verdict, peer, statement):
            self._sending[key] = asyncio.create_task(self._deliver(verdict, peer, statement))

    def _is_confirmed(self, verdict: Signed[Verdict], peer: PeerId, statement: Statement) -> bool:
        confirmed = self._delivered.get(Digest(verdict.message.commit), {})
        return statement is verdict and (verdict.digest, peer) in confirmed

    async def _deliver(self, verdict: Signed[Verdict], peer: PeerId, statement: Statement) -> None:
        """Send once; a confirmed verdict is done, anything else may be sent after a pause."""
        is_sent = await self._context.network.send(peer, statement.envelope)
        if is_sent and statement is verdict:
            confirmed = self._delivered.setdefault(Digest(verdict.message.commit), {})
            confirmed[verdict.digest, peer] = None
        else:
            await asyncio.sleep(RETRY_EPOCHS * self._context.epoch_seconds)
