"""Trainers that choose their batches: they leave out the rollouts of one worker.

The daemon is unchanged. Its replica gets a rule and a backlog without these rollouts, so the
trainer draws, trains and publishes as an honest one.
"""

from collections.abc import Collection, Sequence

from typing_extensions import override

from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId
from protocol.ledger.backpressure import Backpressure
from protocol.ledger.commits import Entry
from protocol.messages import OMITTED_MAX
from protocol.replica.batch_rule import BatchRule, Draft
from protocol.replica.replica import Replica
from simulations.adversaries.gossiping import GossipingTransport
from simulations.ports.parts import Behaviour, Parts


class ChoosingRule(BatchRule):
    """Draws no rollouts of one worker, and approves what it draws."""

    def __init__(self, replica: Replica, shunned: PeerId, *, names: bool) -> None:
        super().__init__(replica.manifest, replica.ledger, replica.pages)
        self._commits, self._shunned, self._names = replica.ledger.commits, shunned, names

    def is_shunned(self, commit: Digest) -> bool:
        """Return whether a commit is one of the worker."""
        entry = self._commits.known(commit)
        return entry is not None and entry.commit.signer == self._shunned

    @override
    def lot(self, page: bytes, version: int, used: Collection[bytes] = ()) -> list[Digest] | None:
        drawn = super().lot(page, version, used)
        if drawn is None or self._names:
            return drawn
        return [one for one in drawn if not self.is_shunned(one)]

    @override
    def omitted(self, version: int, lot: Sequence[Digest], batch: Sequence[bytes]) -> list[Digest]:
        return super().omitted(version, lot, batch)[:OMITTED_MAX]

    @override
    def fault(
        self, draft: Draft, before: bytes, oldest_epoch: int, used: Collection[bytes] = ()
    ) -> Fault | bool:
        return True


class ChoosingBackpressure(Backpressure):
    """A node's backlog, of which the rollouts of one worker are not usable."""

    def __init__(self, honest: Backpressure, rule: ChoosingRule) -> None:
        self.__dict__.update(honest.__dict__)  # both follow the changes of commits
        self._rule = rule

    @override
    def usable(self) -> list[Entry]:
        return [one for one in super().usable() if not self._rule.is_shunned(one.commit.digest)]


class ChoosingTransport(GossipingTransport):
    """Chooses the worker with the most certified rollouts as soon as there is one."""

    def __init__(self, parts: Parts, *, names: bool) -> None:
        super().__init__(parts)
        self._names = names
        self._replica: Replica | None = None

    @override
    async def act(self, replica: Replica) -> None:
        counts = replica.ledger.workers.counts
        certified = {peer: one.certified for peer, one in counts.items() if one.certified}
        if replica is self._replica or not certified:
            return
        self._replica = replica  # a new one after a restart
        shunned = max(certified, key=lambda peer: (certified[peer], peer))
        rule = ChoosingRule(replica, shunned, names=self._names)
        replica.batches = rule
        replica.ledger.backpressure = ChoosingBackpressure(replica.ledger.backpressure, rule)


def _choosing(*, names: bool) -> Behaviour:
    def behaviour(parts: Parts, _rng: Rng) -> Parts:
        return parts.with_ports(transport=ChoosingTransport(parts, names=names))

    return behaviour


hidden_worker = _choosing(names=False)
omitted_worker = _choosing(names=True)
