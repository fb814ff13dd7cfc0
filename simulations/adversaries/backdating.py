"""Commits that are selected for their committees: the page that would draw them is public."""

from typing_extensions import override

from protocol.consensus.committee import Committee, draw
from protocol.consensus.page_node import PageNode
from protocol.consensus.verdict_pool import Outcome
from protocol.core.rng import Rng
from protocol.core.types import DIGEST_BYTES, Digest, Topic
from protocol.messages import CheckpointManifest, RolloutCommit, Signed, seal
from protocol.replica.replica import Replica
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.unverifiable import COMMITS_OPEN_MAX, unfounded
from simulations.adversaries.validators import invented_verdict
from simulations.ports.parts import Parts

BODIES = 400
"""Candidates for each commit; half of a council of six is one first committee of three in 20."""

COMMITS_EACH = 3
"""Commits for each version."""


class BackdatingTransport(GossipingTransport):
    """Commits with the date of the epoch before a page, and with a certificate that names the page.

    It selects a body for which the page would draw a first committee of accomplices only. These
    lend their keys and are honest otherwise. No body exists.
    """

    pause_seconds = 2.0

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self._rng = rng
        self._checkpoint = Digest(b"")
        self._slot = self._first = 0

    @override
    async def act(self, replica: Replica) -> None:
        head, me = replica.ledger.chain.head, self.parts.signer.peer_id
        drawing = [node for node in replica.pages.notarised() if node.draws]
        if head is None or not drawing or me in replica.pages.council.places:
            return
        if head.digest != self._checkpoint:
            self._checkpoint = head.digest
            self._first = self._slot
        commits = replica.ledger.commits.open_entries()
        is_full = sum(one.commit.signer == me for one in commits) >= COMMITS_OPEN_MAX
        if self._slot < self._first + COMMITS_EACH and not is_full:
            await self._commit(replica, head, drawing[-1])

    async def _commit(
        self, replica: Replica, head: Signed[CheckpointManifest], page: PageNode
    ) -> None:
        date = replica.manifest.epoch_start(page.epoch - 1)
        for _ in range(BODIES):
            body = self._rng.bytes(DIGEST_BYTES)
            commit = unfounded(replica, head, date, self._slot, body)
            signed = seal(commit, replica.run_id, self.parts.signer)
            committee = draw(replica.manifest, page, signed)
            if committee is not None and self.parts.accomplices.keys() >= set(committee.first):
                self._slot += 1
                await self.publish(replica, Topic.COMMITS, commit)
                await self._certify(replica, signed, committee)
                return

    async def _certify(
        self, replica: Replica, commit: Signed[RolloutCommit], committee: Committee
    ) -> None:
        signers = [self.parts.accomplices[peer] for peer in committee.first]
        verdict = invented_verdict(commit.digest, committee.page.digest)
        verdicts = tuple(seal(verdict, replica.run_id, signer) for signer in signers)
        outcome = Outcome(accepted=True, escalated=False, verdicts=verdicts)
        certificate = outcome.certificate(commit.digest, committee)
        await self.publish(replica, Topic.CERTIFICATES, certificate, signers[0])


def backdated_commits(parts: Parts, rng: Rng) -> Parts:
    """Commit with false dates, for the committees of pages that are public."""
    return parts.with_ports(transport=BackdatingTransport(parts, rng.child("bodies")))
