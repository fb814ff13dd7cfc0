"""Training: learn from certified rollouts, publish each version, keep training meanwhile.

A version exists once its signed manifest is stored here; only then is it announced. State is
written before that, so a crash at any moment resumes from the last stored version with the next
number.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import structlog

from protocol.assignment import assign
from protocol.audit import check_claims
from protocol.faults import Fault
from protocol.ledger.commits import Entry
from protocol.messages import CheckpointManifest, Signed
from protocol.rollout import REWARD_SCALE, decode_body
from protocol.types import Digest, Topic, Version
from roles.flow import RoleContext, reward
from roles.ports.engines import Environment, Policy, TrainingEngine, TrainingSequence
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError

log = structlog.get_logger()

PUBLICATION_DRAIN_SECONDS = 10.0

Batch = tuple[list[Entry], list[TrainingSequence]]

T = TypeVar("T")


class TrainerFlow:
    """One trainer; it leads while it is its turn and follows otherwise."""

    def __init__(
        self, context: RoleContext, engine: TrainingEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._environment = environment
        self._started_at = asyncio.get_running_loop().time()
        self._consumed: dict[Digest, None] = {}
        self._misses: Counter[Digest] = Counter()
        self._version = -1
        self._term = 0
        self._parent = b""
        """Digest of the manifest of the version that the next one is made from."""
        self._publishing: asyncio.Task[None] | None = None
        self._awaited: tuple[Digest, float] | None = None
        """The newest version while nobody can give it to us, and since when."""

    async def run(self) -> None:
        """Work until cancelled."""
        context = self._context
        try:
            while True:
                seen = context.changes.count
                if not self._leads():
                    context.conditions.clear("trainer")  # what held us up is another one's now
                elif not self._finished() and await self._resume():
                    await self._lead()
                await context.tick(seen)
        finally:
            if self._publishing is not None:  # a drain lets the version under way out
                await asyncio.wait((self._publishing,), timeout=PUBLICATION_DRAIN_SECONDS)
                self._publishing.cancel()

    def _leads(self) -> bool:
        """Tell whether it is our turn, once we know what we may have missed."""
        context = self._context
        genesis = context.manifest.genesis
        if context.peer_id != genesis.trainers[0]:
            # Those before us in the order get one record's life to show up.
            waited_seconds = asyncio.get_running_loop().time() - self._started_at
            if waited_seconds < context.manifest.epochs.record_epochs * context.epoch_seconds:
                return False
        now = context.clock.now()
        return context.network.synchronised and context.replica.leader(now) == context.peer_id

    def _finished(self) -> bool:
        context = self._context
        return context.replica.ledger.version >= context.manifest.grpo.steps

    async def _resume(self) -> bool:
        """Load the state of the newest version that can be had; False while we wait for it."""
        context = self._context
        head = context.replica.ledger.head
        if head is None:
            return await self._begin()
        version = head.message.version
        own_state = context.policies.state_path(version)
        ours = (
            head.signer == context.peer_id
            and context.blobs.file_bytes(own_state) is not None
            and await self._load_state(own_state)
        )
        found: Signed[CheckpointManifest] | None = head
        if not ours and not await self._take_over(head):
            found = await self._go_back(head)
        if found is None:
            return False
        self._version, self._parent = found.message.version, found.digest
        # A later term is above what an earlier trainer, or we before we lost our disk, published
        # without our knowing.
        term = head.message.term
        self._term = term if ours else context.manifest.term_of(context.peer_id, term + 1)
        self._consumed.clear()
        context.conditions.clear("trainer")
        if ours:  # a crash may have come between its storing and its announcing
            await context.network.announce(Topic.CHECKPOINTS, head.envelope)
        log.info("training resumed", version=self._version, term=self._term)
        return True

    async def _take_over(self, head: Signed[CheckpointManifest]) -> bool:
        """Load the published state, or else the weights alone; False while neither is here."""
        context, version = self._context, head.message.version
        try:
            published = await context.policies.fetch_state(head) if head.message.state else None
        except StorageFullError as error:
            context.conditions.set("trainer", f"disk full: {error}; waiting for room")
            await asyncio.sleep(context.epoch_seconds)
            return False
        if published is not None and await self._load_state(published):
            return True
        policy = context.policies.get(version)
        if policy is not None and await self._load_policy(policy):
            return True
        context.conditions.set("trainer", f"waiting for the weights of version {version}")
        return False

    async def _go_back(self, head: Signed[CheckpointManifest]) -> Signed[CheckpointManifest] | None:
        """Load the newest version that we hold once the head is lost with all who had it.

        A trainer may die between announcing a version and serving its first byte. Our next version
        then takes the number of a lost one, in a later term and from the same parent.
        """
        context, now = self._context, asyncio.get_running_loop().time()
        if self._awaited is None or self._awaited[0] != head.digest:
            self._awaited = (head.digest, now)
        # After one record's life everyone who is live has said what it holds.
        life_seconds = context.manifest.epochs.record_epochs * context.epoch_seconds
        if now < self._awaited[1] + life_seconds or self._is_held(head.message.version):
            return None
        for version in range(head.message.version - 1, -1, -1):
            checkpoint = context.replica.ledger.checkpoint(version)
            if checkpoint is None or context.policies.get(version) is None:
                continue
            if await self._take_over(checkpoint):
                log.warning("versions are lost", newest=head.message.version, left=version)
                return checkpoint
        return None

    async def _load_state(self, path: Path) -> bool:
        try:
            await self._engine.load_state(path)
        except ValueError as error:
            log.warning("a trainer's state is damaged", error=str(error))
            return False
        return True

    async def _load_policy(self, policy: Policy) -> bool:
        try:
            await self._engine.load_policy(policy)
        except ValueError as error:
            log.warning("policy refused", version=policy.version, error=str(error))
            await self._context.policies.discard(policy)
            return False
        return True

    async def _begin(self) -> bool:
        """Publish version 0 from the genesis weights, if it is ours to publish."""
        context = self._context
        path = context.policies.genesis_path()
        if path is None or context.peer_id != context.manifest.genesis.trainers[0]:
            context.conditions.set("trainer", "waiting for the genesis policy")
            return False
        if self._is_held(0):  # then we have published, and have lost our disk
            context.conditions.set("trainer", "waiting for what others know of this run")
            return False
        policy = Policy(Version(0), context.manifest.genesis_policy, path)
        if not await self._load_policy(policy):
            context.conditions.set("trainer", f"{path} is not the genesis policy of this run")
            await asyncio.sleep(context.epoch_seconds)
            return False
        self._version, self._term, self._parent = -1, 0, b""
        await self._finish_version([], 0)
        await self._settle_publication()
        return context.replica.ledger.version == 0

    def _is_held(self, version: int) -> bool:
        """Tell whether a node of the genesis says that it holds ``version`` or a later one."""
        context = self._context
        manifest = context.manifest
        return any(
            member.record.message.policy_version >= version
            for member in context.replica.roster.live(context.clock.now())
            if manifest.is_validator(member.peer) or manifest.is_trainer(member.peer)
        )

    async def _lead(self) -> None:
        """Train until it is no longer our turn or the run is complete."""
        context = self._context
        steps = context.manifest.grpo.steps
        while self._leads() and self._version < steps:
            seen = context.changes.count
            published = self._publishing is not None and self._publishing.done()
            if published and not await self._settle_publication():
                return
            batch = await self._next_batch()
            if batch is None:
                await context.tick(seen)
                continue
            entries, sequences = batch
            metrics = await self._engine.step(sequences)
            mean = sum(item.reward for item in sequences) / len(sequences)
            log.info(
                "step",
                version=self._version + 1,
                reward_mean=round(mean, 4),
                applied=metrics.applied,
                gradient_norm=round(metrics.gradient_norm, 4),
                clip_fraction=round(metrics.clip_fraction, 4),
                sequences_used=metrics.sequences_used,
            )
            # The batch is used up either way: a version that learned nothing still moves the
            # run on, where skipping it would leave its rollouts in everybody's backlog.
            if not await self._settle_publication():
                return
            await self._finish_version(entries, round(mean * REWARD_SCALE))
        await self._settle_publication()

    async def _next_batch(self) -> Batch | None:
        """Return enough certified rollouts with their bodies, or None while there are too few."""
        context = self._context
        grpo = context.manifest.grpo
        oldest = self._version - grpo.async_level
        entries = context.replica.ledger.entries
        self._misses = Counter({key: n for key, n in self._misses.items() if key in entries})
        candidates = [
            entry
            for entry in context.replica.ledger.usable()
            if entry.commit.digest not in self._consumed and oldest <= entry.commit.message.version
        ]
        if len(candidates) < grpo.rollouts_per_step:
            return None
        # Bodies that could not be had come last, so that a few lost ones hold nothing up.
        candidates.sort(key=lambda entry: self._misses[entry.commit.digest])
        complete = await self._complete(candidates[: 2 * grpo.rollouts_per_step])
        if len(complete) < grpo.rollouts_per_step:
            return None
        batch = [
            TrainingSequence(
                index * context.manifest.sampling.prompts_per_rollout + item.group,
                item.prompt,
                item.tokens,
                item.logprobs,
                item.reward,
            )
            for index, (_, sequences) in enumerate(complete)
            for item in sequences
        ]
        return [entry for entry, _ in complete], batch

    async def _complete(
        self, candidates: list[Entry]
    ) -> list[tuple[Entry, list[TrainingSequence]]]:
        """Return a batch of entries with their bodies, or fewer; no more than needed is fetched."""
        count = self._context.manifest.grpo.rollouts_per_step
        complete: list[tuple[Entry, list[TrainingSequence]]] = []
        waiting = iter(candidates)
        while some := list(islice(waiting, count - len(complete))):
            found = await asyncio.gather(*map(self._sequences, some))
            for entry, sequences in zip(some, found, strict=True):
                if sequences is None:
                    self._misses[entry.commit.digest] += 1
                else:
                    complete.append((entry, sequences))
        return complete

    async def _sequences(self, entry: Entry) -> list[TrainingSequence] | None:
        """Fetch a certified body; rewards are recomputed, never taken from it."""
        context, message = self._context, entry.commit.message
        voters = context.replica.tally(entry.commit.digest).verdicts
        certifier = [] if entry.certificate is None else [entry.certificate.signer]
        body = await context.network.fetch(
            Digest(message.body), message.body_bytes, [entry.commit.signer, *certifier, *voters]
        )
        checkpoint = context.replica.ledger.checkpoint(message.version)
        if body is None or checkpoint is None or checkpoint.digest != message.checkpoint:
            return None
        sequences = decode_body(body, context.manifest)
        if isinstance(sequences, Fault):
            return None
        assignments = assign(context.manifest, checkpoint.digest, entry.commit.signer, message.slot)
        own = [item.reward for item in sequences]
        if check_claims(context.manifest, message, sequences, own) is not None:
            return None  # a certificate is worth its signers' word; the model must not choke on it
        return [
            TrainingSequence(
                item.group,
                self._environment.prompt(item.problem_seed),
                claimed.tokens,
                claimed.logprobs,
                reward(context.manifest, self._environment, item, claimed.tokens) / REWARD_SCALE,
            )
            for item, claimed in zip(assignments, sequences, strict=True)
        ]

    # Publication

    async def _finish_version(self, entries: Sequence[Entry], reward_mean: int) -> None:
        """Write weights and state of the next version, and publish it beside the training."""
        context = self._context
        version = self._version + 1
        path = context.policies.weights_path(version)
        state_path = context.policies.state_path(version)
        digest = await self._stored(lambda: self._engine.write_policy(path))
        await self._stored(lambda: self._engine.save_state(state_path))
        batch = [entry.commit.digest for entry in entries]
        self._consumed = dict.fromkeys(batch)  # what came before is in the ledger
        self._version = version
        policy = Policy(Version(version), digest, path)
        self._publishing = asyncio.create_task(self._publish(policy, batch, reward_mean))

    async def _stored(self, write: Callable[[], Awaitable[T]]) -> T:
        """Return what ``write`` returns, repeating it while the disk is full."""
        context = self._context
        while True:
            try:
                result = await write()
            except StorageFullError as error:
                context.conditions.set("trainer", f"disk full: {error}; waiting for room")
                await asyncio.sleep(context.epoch_seconds)
                continue
            context.conditions.clear("trainer")
            return result

    async def _publish(self, policy: Policy, batch: Sequence[Digest], reward_mean: int) -> None:
        context = self._context
        release = await self._stored(lambda: context.policies.release(policy))

        async def announce() -> None:
            manifest = CheckpointManifest(
                version=policy.version,
                term=self._term,
                parent=self._parent,
                policy=policy.digest,
                index=release.index,
                index_bytes=release.index_bytes,
                total_bytes=release.total_bytes,
                state=release.state or b"",
                state_bytes=release.state_bytes,
                batch=tuple(batch),
                reward_mean=reward_mean,
                created_at=round(context.clock.now() * 1000),
            )
            self._parent = (await context.network.publish(Topic.CHECKPOINTS, manifest)).digest

        await self._stored(announce)
        log.info("version published", version=policy.version, term=self._term)

    async def _settle_publication(self) -> bool:
        """Wait for the publication under way: versions are published one after another.

        False when it was refused: another trainer has taken over with a later term. Our unpublished
        work is dropped then, and ``_resume`` starts from what the swarm has.
        """
        if self._publishing is None:
            return True
        try:
            await asyncio.shield(self._publishing)  # a drain that comes now waits for it too
        except RefusedError as error:
            log.warning("publication refused", error=str(error))
            self._context.conditions.set("trainer", f"publication refused: {error}")
            self._publishing = None
            return False
        self._publishing = None
        return True
