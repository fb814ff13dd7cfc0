"""One role flow over a real replica, with scripted network, policies and engines."""

import asyncio
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from protocol.core.types import PeerId, ValidationResult, Version
from protocol.ledger.chain import Lead
from protocol.messages import seal
from protocol.replica.replica import Replica
from protocol.rollout.statistics import Extremes, Measurement, Sums
from protocol.rollout.witness import WitnessValue
from protocol.shardcast.index import ShardIndex
from roles.environments.threaded import InBackground
from roles.ports.engines import Generation, Policy, StepMetrics, Unscorable
from roles.ports.storage import StorageFullError, StoredFile
from roles.ports.swarm import RefusedError, Release
from roles.runtime.context import ChangeSignal, Conditions, RoleContext
from simulations.runtime.loop import SimBackground
from tests.worlds.disks import MemoryBlobs, MemoryFiles, MemoryStore
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.network import LoopClock
from tests.worlds.page_book import fast_output
from tests.worlds.page_writer import PageWriter

STORED = StoredFile(digest(b"index"), 10, ShardIndex(100, 100, 100, ()))
ANSWER = 5
END = 1
VALUE = WitnessValue(-1.0, 7)
"""Result of every honest engine at every witness point."""


class Task:
    """Task that fails on unknown tokens, as real ones do."""

    name = "task"
    vocabulary_size = 32
    vocabulary = tuple(str(index) for index in range(32))

    def __init__(self):
        self.on_score = lambda seed: None

    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        return (2 + seed % 8, *([] if length_target is None else [10 + length_target % 16]))

    def score(self, seed: int, completion: Sequence[int]) -> float:
        self.on_score(seed)
        [self.vocabulary[token] for token in completion]
        return 1.0 if completion[0] == ANSWER else 0.0

    def watch(self, background: "Background") -> list[bool]:
        """Return a list that gets a flag per call: True if it ran in the background."""
        asked: list[bool] = []
        prompt = self.prompt

        def noted(*question):
            asked.append(background.running)
            return prompt(*question)

        self.prompt = noted
        self.on_score = lambda _seed: asked.append(background.running)
        return asked


class Unsure(InBackground):
    """Task that has no score for the problems in ``unsure``; records its calls."""

    def __init__(self, background):
        super().__init__(Task(), background)
        self.unsure: dict[int, None] = {}
        self.asked: list[int] = []

    async def score_batch(self, answers):
        self.asked += [answer.seed for answer in answers]
        scores = await super().score_batch(answers)
        return [
            Unscorable("3.2 s of processor time") if answer.seed in self.unsure else score
            for answer, score in zip(answers, scores, strict=True)
        ]


class Engine:
    """Generation and verification; ``refused`` policies fail to load.

    ``errors`` are raised first, one by one.
    """

    def __init__(self):
        self.errors: list[Exception] = []
        self.tried: list[float] = []
        """Loop times of the calls."""
        self.loads: list[int] = []
        self.staged: list[int] = []
        self.refused: dict[bytes, None] = {}
        self.measured: list[int] = []
        self.prompts: list[tuple[int, ...]] = []
        """Prompts of the last call."""
        self.tokens_sampled = 0
        self.first_token = None
        self.forgetful = 0
        self.on_load = lambda: None
        self.honest = True

    async def stage(self, policy: Policy) -> bool:
        await asyncio.sleep(0.1)
        self.staged.append(policy.version)
        return True

    async def load(self, policy: Policy) -> None:
        await asyncio.sleep(0.1)
        self.on_load()
        if policy.digest in self.refused:
            raise ValueError("another policy")
        self.loads.append(policy.version)

    async def _compute(self):
        self.tried.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        if self.errors:
            raise self.errors.pop(0)

    async def generate(self, requests, temperature):
        await self._compute()
        self.prompts = [request.prompt for request in requests]
        self.tokens_sampled += 2 * len(requests)
        return [Generation((ANSWER, END), (-0.5, -0.5), (b"proof",)) for _ in requests]

    async def measure(self, version, requests, temperature):
        await self._compute()
        if self.forgetful:
            self.forgetful -= 1
            raise KeyError(version)
        self.measured.append(version)
        self.prompts = [request.prompt for request in requests]
        nothing_off = Sums(1, 1)
        worst = Extremes(0 if self.honest else 120, 0, 0, 0, 0)
        return [
            Measurement(None, nothing_off, worst, tuple(VALUE for _ in request.points))
            for request in requests
        ]


class Trainer:
    """Training engine with a number as state; log-probabilities encode the version.

    ``errors`` of a method are raised one by one, None for none.
    """

    ranks = 1

    def __init__(self):
        self.errors: dict[str, list[Exception | None]] = {}
        self.loaded: list[str] = []
        self.damaged: dict[str, None] = {}
        self.states: dict[str, bytes] = {}
        """The policy of each state that has one."""
        self.full = 0
        self.batches: list[list] = []
        self.recomputed: list[int] = []
        self.begun: list = []
        self.learned = 0
        self.writing = 0
        self.write_seconds = 0.0
        self.on_read = lambda: None

    async def load_policy(self, policy: Policy) -> None:
        self._load(policy.path)

    async def state_bytes_max(self) -> int:
        return 100

    async def load_state(self, path: Path, policy: bytes, newer: Policy | None = None) -> None:
        if policy != self.states.get(path.name, policy):
            raise ValueError(f"{path.name} is of another policy")
        if newer is not None and newer.path.name in self.damaged:
            raise ValueError(f"{newer.path.name} is damaged")
        self._load(path)
        if newer is not None:
            self._load(newer.path)

    def _break(self, method: str) -> None:
        error = self.errors[method].pop(0) if self.errors.get(method) else None
        if error is not None:
            raise error

    def _load(self, path: Path) -> None:
        self._break("load")
        self.on_read()
        if path.name in self.damaged:
            raise ValueError(f"{path.name} is damaged")
        self.loaded.append(path.name)

    async def recompute(self, policy, sequences, path=None):
        self._break("recompute")
        self.on_read()
        if policy.path.name in self.damaged:
            raise ValueError(f"{policy.path.name} is damaged")
        self.recomputed.append(policy.version)
        own = (-float(policy.version + 1),)
        return [replace(one, logprobs=own * len(one.tokens)) for one in sequences]

    async def begin_step(self, batch):
        await asyncio.sleep(0.09)
        self._break("step")
        self.begun = list(batch)

    async def end_step(self):
        assert not self.writing, "the weights must not change"
        self.batches.append(self.begun)
        await asyncio.sleep(0.01)
        self._break("end_step")
        self.learned += 1
        return StepMetrics(1, 0.0, 1.0, 1.0, len(self.begun))

    def _policy(self) -> bytes:
        return f"policy {self.learned}".encode()

    async def policy_digest(self):
        return digest(self._policy())

    async def write_policy(self, path: Path):
        await self._write(path, "write_policy", self._policy())
        return digest(path.read_bytes())

    async def save_state(self, path: Path) -> None:
        await self._write(path, "save_state", b"state")

    async def _write(self, path: Path, method: str, content: bytes) -> None:
        self.writing += 1
        try:
            await asyncio.sleep(self.write_seconds)
            self._break(method)
            if self.full:
                self.full -= 1
                raise StorageFullError("no room")
            path.write_bytes(content)
        finally:
            self.writing -= 1


class Network:
    """Accepts and records published messages; ``errors`` are raised first, one by one."""

    def __init__(self, flow_world):
        self.world = flow_world
        self.synchronised = True
        self.first_slot = 0
        self.evaluated_up_to = -1
        self.judged_before = 0
        self.errors: list[Exception] = []
        self.published: list = []
        self.recorded: list = []
        self.announced: list[bytes] = []
        self.sent: list[tuple[str, bytes]] = []
        self.unreachable: dict[str, None] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.asked: list[tuple[bytes, list[str]]] = []

    def may_have_evaluated(self, version):
        return version <= self.evaluated_up_to

    def may_have_judged(self, epoch):
        return epoch < self.judged_before

    def may_have_voted(self, epoch):
        return epoch <= self.judged_before

    async def record(self, message):
        await asyncio.sleep(0.01)
        if self.errors:
            raise self.errors.pop(0)
        signed = seal(message, self.world.run_id, self.world.signer)
        received = self.world.replica.receive(signed.envelope, self.world.now())
        if received.result is not ValidationResult.ACCEPT:
            raise RefusedError(str(received.fault or "no longer news"))
        self.recorded.append(signed)
        self.world.changes.notify()
        return signed

    async def publish(self, topic, message):
        signed = await self.record(message)
        self.published.append(signed)
        return signed

    async def announce(self, topic, envelope):
        self.announced.append(envelope)

    async def send(self, peer, envelope):
        await asyncio.sleep(0.01)
        if peer in self.unreachable:
            return False
        self.sent.append((peer, envelope))
        return True

    async def fetch_body(self, commit, sources):
        await asyncio.sleep(0.05)
        wanted = commit.message.body
        self.asked.append((wanted, list(sources)))
        return self.bodies.get(wanted)


class Policies:
    def __init__(self, flow_world):
        self.world = flow_world
        self.held: dict[int, Policy] = {}
        self.discarded: list[int] = []
        self.in_use: list[int] = []
        self.errors: list[Exception] = []
        self.state: Path | None = None
        """A published state of another trainer."""
        self.releases = 0

    def get(self, version):
        return self.held.get(version)

    def newest(self):
        return self.held[max(self.held)] if self.held else None

    def newest_version(self):
        return max(self.held, default=-1)

    @contextmanager
    def hold(self, policy):
        self.in_use.append(policy.version)
        try:
            yield
        finally:
            self.in_use.remove(policy.version)

    async def release(self, policy):
        await asyncio.sleep(0.05)
        if self.errors:
            raise self.errors.pop(0)
        self.releases += 1
        self.held[policy.version] = policy
        return Release(STORED, (), None)

    def published_state(self, version):
        rules, ledger = self.world.manifest.shardcast, self.world.replica.ledger
        found = map(ledger.chain.get, range(version, max(-1, version - rules.state_every), -1))
        return next((one for one in found if one and one.message.state), None)

    async def fetch_state(self, manifest):
        await asyncio.sleep(0.05)
        if self.errors:
            raise self.errors.pop(0)
        return self.state

    async def discard(self, policy):
        self.discarded.append(policy.version)
        self.held.pop(policy.version, None)


class LeadingPages(PageWriter):
    """Also states what a test decides about the leader, the final version and rollouts."""

    decided: Lead | None = None
    accepted: Sequence[bytes] = ()
    """Commits that the next page accepts, although no page has drawn their committees."""

    def write(self, epoch):
        super().write(epoch)
        self.count(self._replica)

    def _extend(self, parent, epoch, contents=Contents()):  # noqa: B008 - frozen
        if self.accepted:
            contents = replace(contents, certified=tuple(self.accepted), rejected=())
            self.accepted = ()
        if self.decided is not None:
            lead = self.decided
            contents = replace(contents, term=lead.term, head=lead.head)
        return super()._extend(parent, epoch, contents)


class FlowWorld:
    """A run that has just begun, seen by ``signer``; all validators are live.

    The page of each epoch, with all votes, arrives soon after its beginning, until ``pages.stop``.
    ``policy`` is version 0 where real weights are needed.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        begun: bool = True,
        policy: Policy | None = None,
        **sections,
    ):
        sections.setdefault("epochs", {"seconds": 10.0, "record_epochs": 500})
        made = run_manifest(**sections)
        changes = {"created_at": round(LoopClock().now())}
        if policy is not None:
            changes["policy"] = policy.digest.hex()
        genesis = made.genesis.model_copy(update=changes)
        self.world = World(made.model_copy(update={"genesis": genesis}))
        self.manifest = self.world.manifest
        self.run_id = self.manifest.run_id
        self.signer = next(
            one
            for group in (self.world.workers, self.world.validators, self.world.trainers)
            for one in group
            if one.peer_id == _named(name)
        )
        self.replica = Replica(self.manifest, lambda *_: True, fast_output)
        for one in self.world.validators:
            self.take(self.world.record(one, ("validator",), joined_at=0, policy_version=-1))
        self.changes, self.conditions = ChangeSignal(), Conditions()
        self.background = Background()
        self.network = Network(self)
        self.policies = Policies(self)
        self.files = MemoryFiles(directory, directory / "genesis", directory / "task", None)
        self.context = RoleContext(
            signer=self.signer,
            manifest=self.manifest,
            replica=self.replica,
            clock=LoopClock(),
            background=self.background,
            blobs=Blobs(),
            files=self.files,
            store=MemoryStore(),
            network=self.network,
            policies=self.policies,
            changes=self.changes,
            conditions=self.conditions,
        )
        if begun:
            self.take(self.world.genesis())
            if policy is None:
                self.hold(0, b"policy 0")
            else:
                self.policies.held[0] = policy
        self.task = None
        self.pages = LeadingPages(self.replica, self.world.validators, self.changes.notify)

    def now(self) -> float:
        return LoopClock().now()

    def take(self, signed) -> None:
        received = self.replica.receive(signed.envelope, self.now())
        assert received.result is ValidationResult.ACCEPT, received

    def hold(self, version: int, content: bytes) -> Policy:
        policy = Policy(Version(version), digest(content), self.files.weights(version))
        self.policies.held[version] = policy
        return policy

    def live(self, *identities, roles=("trainer",), **changes) -> None:
        for one in identities:
            now_ms = round(self.now() * 1000)
            changes.setdefault("joined_at", 0)
            self.take(self.world.record(one, roles, sequence=now_ms, **changes))

    def version(self, *batch, trainer=0, **changes):
        head = self.replica.ledger.chain.head
        digests = tuple(commit.digest for commit in batch)
        signed = self.world.checkpoint(head, trainer, batch=digests, **changes)
        if signed.message.term == self.replica.lead.term:
            self.take(signed)
        else:
            self.adopt(signed)
        self.changes.notify()
        return signed

    def adopt(self, version) -> None:
        """Adopt a version of any trainer, as if a final page made it final and let it lead.

        The pages of the next epochs say so too.
        """
        self.pages.decided = Lead(version.message.term, version.digest)
        self.replica.ledger.branches.add(version, self.now())
        followed = self.replica.ledger.follow(self.pages.decided, self.now())
        assert followed[-1:] == [version]

    async def decide(self, term: int, head=None) -> None:
        """Let pages decide the leader and the final version, and wait until one is final."""
        self.pages.decided = Lead(term, b"" if head is None else head.digest)
        while self.replica.lead != self.pages.decided:
            await self.rest(1)
        await self.rest(1)

    async def accept(self, *commits) -> None:
        """Let a page accept commits, and wait until it is final."""
        self.pages.accepted = [one.digest for one in commits]
        pages, last = self.replica.pages, commits[-1].digest
        while not pages.outcome(last, pages.root):
            await self.rest(1)

    def asked(self, task: Task) -> InBackground:
        """Return ``task`` as flows use it."""
        return InBackground(task, self.background)

    def run(self, flow) -> None:
        self.task = asyncio.create_task(flow.run())

    async def rest(self, seconds: float) -> None:
        """Advance time, for the ledger too; the flow must not fail."""
        until = self.now() + seconds
        while self.now() < until:
            await asyncio.sleep(min(1.0, until - self.now()))
            self.replica.advance(self.now())
            assert self.task is None or not self.task.done(), self.task

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled(), self.task


class Background(SimBackground):
    """Records whether a call runs in it."""

    running = False

    async def run(self, function):
        self.running = True
        try:
            return await super().run(function)
        finally:
            self.running = False


class Blobs(MemoryBlobs):
    full = False

    async def put(self, data, owner):
        if self.full:
            raise StorageFullError("no room")
        return await super().put(data, owner)


def _named(name: str) -> PeerId:
    return identity(name).peer_id
