"""A council and its workers in virtual time: each has a replica, a disk and a clock of its own."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.consensus.verdict_pool import Outcome
from protocol.core.rng import Rng
from protocol.core.types import PeerId, ValidationResult
from protocol.ledger.final_ledger import CountedPage
from protocol.messages import (
    Certificate,
    Page,
    PageVote,
    Reveal,
    RolloutCommit,
    Signed,
    seal,
)
from protocol.replica.replica import Replica
from roles.ports.swarm import RefusedError
from roles.runtime.context import ChangeSignal, Conditions, RoleContext
from roles.validator.council import CouncilFlow
from simulations.runtime.loop import SimBackground
from tests.worlds.ledgers import walk_back
from tests.worlds.messages import World, run_manifest
from tests.worlds.network import LoopClock
from tests.worlds.page_book import fast_output, fast_verify

WRITE_SECONDS = 0.004
"""Time of a durable write."""


@dataclass
class CouncilWorld:
    """Members that exchange messages over links with a latency and losses.

    A member that lacks pages or their work gets them from another one once an epoch. All members
    publish a record in every epoch in which they run. ``workers`` begin without a seat; their
    commits are certified in the epoch after a page draws the committee.
    """

    validators: int = 4
    workers: int = 0
    epoch_seconds: float = 10.0
    loss: float = 0.0
    latency_seconds: tuple[float, float] = (0.02, 0.08)
    council: dict[str, int] = field(
        default_factory=lambda: {"silent_epochs": 6, "recovery_epochs": 12}
    )

    def __post_init__(self) -> None:
        self.world = World(
            run_manifest(
                validators=self.validators,
                council=self.council,
                epochs={"seconds": self.epoch_seconds, "record_epochs": 3},
            )
        )
        self.manifest = self.world.manifest
        self.sent: list[Signed] = []
        """Pages, votes and reveals, in the order in which their authors sent them."""
        self.final: dict[int, bytes] = {}
        """Final page of each epoch."""
        self.notarised: dict[int, bytes] = {}
        """Notarised page of each epoch, of the first node that had it."""
        self.drawing: dict[int, bytes] = {}
        """Those that draw committees."""
        self.random = Rng(b"council world")
        self.certificates: dict[bytes, Signed[Certificate]] = {}
        """Certificate of each commit."""
        workers = self.world.workers[: self.workers]
        self.members = [Member(self, one) for one in (*self.world.validators, *workers)]
        self.tasks = [asyncio.create_task(self._refresh())]

    def now(self) -> float:
        return LoopClock().now()

    def epoch(self) -> int:
        return self.manifest.epoch_at(self.now())

    async def run(self, epochs: float) -> None:
        """Let time pass; no flow may fail."""
        await asyncio.sleep(epochs * self.epoch_seconds)
        for member in self.members:
            assert member.task is None or not member.task.done(), member.task

    def start(self) -> None:
        for member in self.members:
            member.start()

    async def stop(self) -> None:
        for member in self.members:
            await member.stop()
        for task in self.tasks:
            task.cancel()

    def commit(self, worker: "Member", count: int = 1) -> list[Signed[RolloutCommit]]:
        """Let a worker commit to some rollouts in the present epoch."""
        made = []
        for _ in range(count):
            number = worker.replica.ledger.commits.next_slot(worker.peer_id)
            signed = self.world.commit(worker.signer, number, epoch=self.epoch())
            worker.receive(signed.envelope)
            self.send(worker, signed)
            made.append(signed)
        return made

    def _certify(self) -> None:
        """Certify what a page has drawn the committee of, as its committee would."""
        member = [one for one in self.members if one.is_up][-1]
        for entry in member.replica.ledger.commits.open_entries():
            committee = member.replica.verdicts.committee(entry.commit)
            if committee is None or entry.commit.digest in self.certificates:
                continue
            keys = [self.world.by_peer[peer] for peer in committee.first]
            page = committee.page.digest
            verdicts = tuple(self.world.verdict(key, entry.commit, page=page) for key in keys)
            outcome = Outcome(accepted=True, escalated=False, verdicts=verdicts)
            certificate = outcome.certificate(entry.commit.digest, committee)
            signed = self.certificates[entry.commit.digest] = self.world.sealed(
                certificate, keys[0]
            )
            member.receive(signed.envelope)
            self.send(member, signed)

    def of(self, kind: type, member: "Member") -> list:
        """Return the sent messages of a kind and a member."""
        peer = member.peer_id
        messages = [one.message for one in self.sent if one.signer == peer]
        return [message for message in messages if type(message) is kind]

    def doubled(self, kind: type) -> list[tuple[PeerId, int]]:
        """Return the members and epochs with more than one sent message of a kind."""
        counts = Counter(
            (one.signer, one.message.epoch) for one in self.sent if type(one.message) is kind
        )
        return [key for key, count in counts.items() if count > 1]

    def send(self, author: "Member", signed: Signed) -> None:
        """Deliver a message to all other members, if it is not lost."""
        if isinstance(signed.message, Page | PageVote):
            assert signed.envelope in author.disk, "it is stored before it is sent"
        if isinstance(signed.message, Page | PageVote | Reveal):
            self.sent.append(signed)
        for member in self.members:
            if member is author or self.random.uniform() < self.loss:
                continue
            if not member.misses(signed):
                low, high = self.latency_seconds
                seconds = low + (high - low) * self.random.uniform()
                asyncio.get_running_loop().call_later(seconds, member.receive, signed.envelope)

    def note(self, member: "Member") -> None:
        """Compare what a member holds for final with the others."""
        pages = member.replica.pages
        if pages.root.digest:
            known = self.final.setdefault(pages.root.epoch, pages.root.digest)
            assert known == pages.root.digest, "two final pages in one epoch"
        for node in pages.tip().path():
            if node.page is not None:
                self.notarised.setdefault(node.epoch, node.digest)
                if node.draws:
                    self.drawing.setdefault(node.epoch, node.digest)

    async def _refresh(self) -> None:
        while True:
            for number, member in enumerate(self.members):
                if member.is_up:
                    member.replica.advance(member.clock.now())
                    member.announce()
                    member.synchronise(self.members[number - 1 - self.epoch() % len(self.members)])
            if any(member.is_up for member in self.members):
                self._certify()
            await asyncio.sleep(self.epoch_seconds)


class Member:
    """One member: flow, replica, and what is on its disk."""

    def __init__(self, world: CouncilWorld, identity) -> None:
        self.world, self.signer, self.peer_id = world, identity, identity.peer_id
        self.clock = LoopClock()
        self.disk: list[bytes] = []
        self.history: dict[bytes, CountedPage] = {}
        """Final pages with their work, on the same disk."""
        self.walks_back = True
        """False: it asks nobody for the work of final pages."""
        self.errors: dict[type, list[Exception]] = {}
        """Raised one by one when a message of a kind is published."""
        self.roles = ("validator",)
        self.misses: Callable[[Signed], bool] = lambda _: False
        """Tells which messages of others never reach it."""
        self.held_version = 0
        """Newest version whose weights are on its disk."""
        self.born_epoch = 0
        """Another disk may have signed before it."""
        self.task: asyncio.Task | None = None
        self.is_up = False
        self._restart()

    def _restart(self) -> None:
        self.replica = Replica(self.world.manifest, fast_verify, fast_output)
        self.replica.restore(self.world.world.genesis().envelope)
        self.replica.intake.ledger.replay(self.history.values())
        for envelope in self.disk:
            self.replica.restore(envelope)
        self.changes = ChangeSignal()
        self.context = RoleContext(
            signer=self.signer,
            manifest=self.world.manifest,
            replica=self.replica,
            clock=self.clock,
            background=SimBackground(),
            blobs=None,
            files=None,
            store=None,
            network=self,
            policies=self,
            changes=self.changes,
            conditions=Conditions(),
        )

    def newest_version(self) -> int:
        return self.held_version

    def start(self) -> None:
        """Begin, or begin again with what is on the disk."""
        self._restart()
        self.is_up = True
        self.task = asyncio.create_task(CouncilFlow(self.context).run())

    async def stop(self) -> None:
        """Crash."""
        self.is_up = False
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            assert self.task.cancelled(), self.task
        self.task = None

    def announce(self) -> None:
        now_ms = round(self.world.now() * 1000)
        record = self.world.world.record(
            self.signer, self.roles, sequence=now_ms, policy_version=-1
        )
        self.receive(record.envelope)
        self.world.send(self, record)

    def synchronise(self, other: "Member") -> None:
        """Get the pages that another member has and this one lacks."""
        behind = self.replica.pages.tip().epoch < self.world.epoch() - 1
        if other is self or not other.is_up or not (behind or self.replica.behind):
            return
        news = [self.replica.intake.offer_chain(one) for one in other.replica.intake.chains()]
        self.replica.count_final()
        news.append(self.walks_back and walk_back(self.replica, other.history))
        if True in news:
            self._keep_counted()
            self.world.note(self)
            self.changes.notify()

    def receive(self, envelope: bytes) -> None:
        if not self.is_up:
            return
        received = self.replica.receive(envelope, self.clock.now())
        if received.result is ValidationResult.ACCEPT:
            self._keep(received)

    def _keep(self, received) -> None:
        for signed in (received.signed, *received.settled):
            if isinstance(signed.message, Page | PageVote) and signed.envelope not in self.disk:
                self.disk.append(signed.envelope)
        self._keep_counted()
        self.world.note(self)
        self.changes.notify()

    def _keep_counted(self) -> None:
        counted = self.replica.intake.ledger.take_counted()
        self.history |= {one.page.digest: one for one in counted}

    # The network of the flow

    def may_have_voted(self, epoch: int) -> bool:
        return epoch < self.born_epoch

    async def catch_up(self, peer) -> None:
        """Get the commits of another member."""
        other = next(one for one in self.world.members if one.peer_id == peer)
        await asyncio.sleep(max(self.world.latency_seconds))
        if not other.is_up:
            return
        for entry in list(other.replica.ledger.commits.entries.values()):
            now = self.clock.now()
            received = self.replica.receive(entry.commit.envelope, now, anti_entropy=True)
            if received.result is ValidationResult.ACCEPT:
                self._keep(received)

    async def publish(self, _topic, message) -> Signed:
        signed = seal(message, self.world.manifest.run_id, self.signer)
        if not isinstance(message, Reveal):
            await asyncio.sleep(WRITE_SECONDS)
            if self.errors.get(type(message)):
                raise self.errors[type(message)].pop(0)
            self.disk.append(signed.envelope)
        received = self.replica.receive(signed.envelope, self.clock.now())
        if received.result is not ValidationResult.ACCEPT:
            self.disk = [one for one in self.disk if one != signed.envelope]
            raise RefusedError(str(received.fault or "no longer news"))
        self._keep(received)
        self.world.send(self, signed)
        return signed
