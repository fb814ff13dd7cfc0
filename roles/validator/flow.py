"""Validation: check the rollouts we are drawn for, exchange verdicts, assemble certificates.

Everything is decided from the replica on each tick, so a lost message or a restart costs time and
nothing else: who is drawn follows from the roster, what is missing is sent again, and a verdict
that was stored before a crash is never signed a second time.
"""

import asyncio

import structlog

from protocol.assignment import SequenceAssignment, assign
from protocol.audit import Finding, audited, check_claims, decide
from protocol.committee import Committee
from protocol.ledger import CommitState, Entry
from protocol.messages import RolloutCommit, Signed, Verdict
from protocol.rollout import RolloutSequence, decode_body
from protocol.types import Digest, Fault, PeerId, Topic, Version
from roles.flow import RefusedError, RoleContext, reward
from roles.ports import Environment, StorageFullError, VerificationEngine, VerificationRequest

log = structlog.get_logger()

CHECKS_AT_ONCE = 4
"""Bodies are fetched while another one is measured; the engine itself takes one at a time."""

RETRY_EPOCHS = 1.0
"""Pause before a body that nobody had, or a peer that did not answer, is tried again."""


class ValidatorFlow:
    """One validator."""

    def __init__(
        self, context: RoleContext, engine: VerificationEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._environment = environment
        self._checking: dict[Digest, asyncio.Task[None]] = {}
        self._retry_at: dict[Digest, float] = {}
        self._delivered: dict[Digest, dict[PeerId, None]] = {}
        self._sending: dict[tuple[Digest, PeerId], asyncio.Task[None]] = {}
        self._decided_at: dict[Digest, float] = {}
        self._loaded: dict[int, Digest] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                self._forget()
                for entry in list(self._context.replica.ledger.entries.values()):
                    if entry.state is CommitState.COMMITTED:
                        await self._attend(entry)
                await self._context.tick()
        finally:
            for task in [*self._checking.values(), *self._sending.values()]:
                task.cancel()

    def _forget(self) -> None:
        entries = self._context.replica.ledger.entries
        for table in (self._retry_at, self._delivered, self._decided_at):
            for commit in [key for key in table if key not in entries]:
                del table[commit]
        for task in [*self._checking.values(), *self._sending.values()]:
            if task.done():
                task.result()  # a failure in a check is ours and must not pass in silence
        self._checking = {key: task for key, task in self._checking.items() if not task.done()}
        self._sending = {key: task for key, task in self._sending.items() if not task.done()}

    async def _attend(self, entry: Entry) -> None:
        """Do what is due for one commit without an outcome."""
        context = self._context
        if context.epoch() <= entry.commit.message.epoch:
            return  # the beacon that draws its committee is of the next epoch
        committee = context.replica.committee(entry.commit)
        if committee is None:
            return
        wide = self._escalated(entry, committee)
        members = committee.escalated if wide else committee.first
        verdict = context.replica.tally(entry.commit.digest).verdicts.get(context.peer_id)
        if verdict is None and context.peer_id in members:
            self._start_check(entry, members)
        elif verdict is not None:
            self._deliver(entry, verdict, members)
        await self._certify(entry, committee)

    def _escalated(self, entry: Entry, committee: Committee) -> bool:
        age_epochs = self._context.epoch() - entry.commit.message.epoch
        late = age_epochs > self._context.manifest.committee.escalate_after_epochs
        return late or self._context.replica.tally(entry.commit.digest).disputed(committee)

    # Checking

    def _start_check(self, entry: Entry, members: tuple[PeerId, ...]) -> None:
        digest = entry.commit.digest
        waiting = self._retry_at.get(digest, 0.0) > self._context.clock.now()
        if digest in self._checking or waiting or len(self._checking) >= CHECKS_AT_ONCE:
            return
        if not self._context.replica.ledger.predecessor_known(entry.commit):
            return  # slot order is not proven yet; synchronisation brings the predecessor
        self._checking[digest] = asyncio.create_task(self._check(entry, members))

    async def _check(self, entry: Entry, members: tuple[PeerId, ...]) -> None:
        context, commit = self._context, entry.commit
        retry_at = context.clock.now() + RETRY_EPOCHS * context.epoch_seconds
        self._retry_at[commit.digest] = retry_at
        body = await context.network.fetch(
            Digest(commit.message.body),
            commit.message.body_bytes,
            [commit.signer, *(peer for peer in members if peer != context.peer_id)],
        )
        if body is None or not await self._ready(commit):
            return
        started = context.clock.now()
        finding = await self._examine(commit, body)
        if context.replica.tally(commit.digest).verdicts.get(context.peer_id) is not None:
            return
        try:
            await context.network.record(
                Verdict(
                    commit=commit.digest,
                    accept=finding.accept,
                    reason=finding.reason,
                    detail=finding.detail,
                    margins=finding.margins,
                )
            )
        except (RefusedError, StorageFullError) as error:
            context.conditions.set("validator", str(error))
            return
        context.conditions.clear("validator")
        log.info(
            "rollout checked",
            commit=commit.digest.hex()[:12],
            worker=commit.signer[-8:],
            reason=finding.reason,
            detail=finding.detail,
            check_seconds=round(context.clock.now() - started, 3),
        )
        context.pulse.beat()

    async def _ready(self, commit: Signed[RolloutCommit]) -> bool:
        """Load the policy that the commit names; False while its weights are not here."""
        policy = self._context.policies.get(commit.message.version)
        if policy is None or policy.digest != commit.message.policy:
            return False
        if self._loaded.get(policy.version) != policy.digest:
            await self._engine.load(policy)
            self._loaded = {
                version: digest
                for version, digest in self._loaded.items()
                if version > policy.version - self._context.manifest.shardcast.versions_kept
            } | {policy.version: policy.digest}
        return True

    async def _examine(self, commit: Signed[RolloutCommit], body: bytes) -> Finding:
        context, manifest = self._context, self._context.manifest
        sequences = decode_body(body, manifest)
        if isinstance(sequences, Fault):
            return Finding("format", str(sequences)[:200])
        checkpoint = context.replica.ledger.checkpoint(commit.message.version)
        if checkpoint is None:
            return Finding("format", "unknown version")
        assignments = assign(manifest, checkpoint.digest, commit.signer, commit.message.slot)
        rewards = [
            reward(manifest, self._environment, assignment, item.tokens)
            for assignment, item in zip(assignments, sequences, strict=True)
        ]
        finding = check_claims(manifest, commit.message, sequences, rewards)
        if finding is not None:
            return finding
        return await self._measure(commit, sequences, assignments)

    async def _measure(
        self,
        commit: Signed[RolloutCommit],
        sequences: list[RolloutSequence],
        assignments: list[SequenceAssignment],
    ) -> Finding:
        manifest = self._context.manifest
        beacon = self._context.replica.electorate.beacon(commit.message.epoch + 1)
        chosen = audited(beacon, commit.digest, len(sequences), manifest.toploc.audit_share)
        requests = [
            VerificationRequest(
                self._environment.prompt(assignments[index].problem_seed),
                assignments[index].noise_seed,
                sequences[index].tokens,
                sequences[index].logprobs,
                sequences[index].proofs,
            )
            for index in chosen
        ]
        measurements = await self._engine.measure(
            Version(commit.message.version), requests, manifest.sampling.temperature
        )
        return decide(manifest, [sequences[index] for index in chosen], measurements)

    # Verdicts and certificates

    def _deliver(self, entry: Entry, verdict: Signed[Verdict], members: tuple[PeerId, ...]) -> None:
        """Hand our verdict to everyone who needs it and has not confirmed it."""
        commit = entry.commit
        delivered = self._delivered.setdefault(commit.digest, {})
        for peer in (*members, commit.signer):
            key = (commit.digest, peer)
            if peer != self._context.peer_id and peer not in delivered and key not in self._sending:
                self._sending[key] = asyncio.create_task(self._send(key, verdict.envelope))

    async def _send(self, key: tuple[Digest, PeerId], envelope: bytes) -> None:
        commit, peer = key
        if await self._context.network.send(peer, envelope):
            self._delivered.setdefault(commit, {})[peer] = None
        else:
            await asyncio.sleep(RETRY_EPOCHS * self._context.epoch_seconds)

    async def _certify(self, entry: Entry, committee: Committee) -> None:
        """Publish the outcome when it is our turn: rank r waits r half epochs for the others."""
        context, digest = self._context, entry.commit.digest
        outcome = context.replica.tally(digest).outcome(committee)
        if outcome is None:
            return
        members = committee.escalated if outcome.escalated else committee.first
        if context.peer_id not in members:
            return
        now = context.clock.now()
        decided_at = self._decided_at.setdefault(digest, now)
        if now < decided_at + members.index(context.peer_id) * context.epoch_seconds / 2:
            return
        try:
            await context.network.publish(Topic.CERTIFICATES, outcome.certificate(digest))
        except RefusedError as error:
            log.info("certificate refused", commit=digest.hex()[:12], error=str(error))
