"""Collector of certified rollouts that evaluate policy versions, one at a time."""

import asyncio

import structlog

from node.context import NodeContext
from node.replication.rollout_bodies import RolloutBodies
from protocol.ledger.commits import CommitState, Entry
from protocol.rollout.audit import AuditResult, read_body

log = structlog.get_logger()


class EvaluationCollector:
    """Keeps this node's evaluation curve at most one epoch late.

    It reads only versions whose weights are kept: nodes release the bodies of others.
    """

    def __init__(self, context: NodeContext, bodies: RolloutBodies) -> None:
        self._context = context
        self._bodies = bodies

    async def run(self) -> None:
        """Read missing bodies once per epoch until cancelled."""
        while True:
            await self.collect()
            await asyncio.sleep(self._context.replica.manifest.epochs.seconds)

    async def collect(self) -> None:
        """Read the missing rollouts; those not available are tried again an epoch later."""
        for entry in self._due():
            if self._context.evaluation.lacks(entry.commit):
                await self._read(entry)

    def _due(self) -> list[Entry]:
        """Return the certified evaluation rollouts of versions that are taken and kept."""
        replica = self._context.replica
        ledger = replica.ledger
        oldest = ledger.chain.version - replica.manifest.shardcast.versions_kept
        return [
            entry
            for entry in ledger.commits.entries.values()
            if entry.state is CommitState.CERTIFIED
            and entry.version > oldest
            and entry.is_evaluation
            and ledger.chain.is_taken(entry.checkpoint)
        ]

    async def _read(self, entry: Entry) -> None:
        replica, message = self._context.replica, entry.commit.message
        voters = replica.verdicts.held(entry.commit.digest)
        certifier = [] if entry.certificate is None else [entry.certificate.signer]
        body = await self._bodies.fetch(entry.commit, [entry.commit.signer, *certifier, *voters])
        if body is None:
            return
        sequences = read_body(replica.manifest, message, body)
        if isinstance(sequences, AuditResult):  # certified by a committee all the same
            log.warning("evaluation not read", commit=entry.commit.digest.hex()[:12])
            return
        store = self._context.ports.store
        await self._context.evaluation.add(replica.manifest, entry.commit, sequences, store)
