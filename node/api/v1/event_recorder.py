"""Event log of a run, derived from the signed messages that prove each event.

After a restart most events follow from the replica again. They are then dated by the epoch of
their commit, because the time of receipt is not stored.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from node.api.forks import contradictions
from node.api.status import Stage
from node.api.v1.answers import EventKind, RunEvent
from node.api.v1.event_log import ROUTINE, EventLog
from node.replication.inbox import MessageOrigin
from protocol.core.types import Digest, PeerId, ValidationResult
from protocol.ledger.commits import CommitState, Entry
from protocol.messages import (
    Certificate,
    CheckpointManifest,
    Evidence,
    RolloutCommit,
    Signed,
)
from protocol.replica.received import Received
from protocol.replica.replica import Replica
from protocol.rollout.audit import SLASHABLE_REASONS

RESTORED_MAX = 256
"""Newest escalations restored after a restart; rarer kinds are restored completely."""


class EventRecorder:
    """Adds the events of one node, with peer id ``me``, to ``event_log``."""

    def __init__(self, replica: Replica, event_log: EventLog, me: str) -> None:
        self._replica = replica
        self._event_log = event_log
        self._me = me
        self._state = ""
        self._slashed: set[PeerId] = set()
        """Keys whose slash by a final page is in the log."""

    def restore(self, now: float) -> None:
        """Add the events that follow from the replica."""
        ledger = self._replica.ledger
        found = [*self._leaders(), *self._excluded(now)]
        entries = ledger.commits.all_entries()
        for worker, commits in ledger.workers.forks.items():
            found.append(self._fork(worker, commits, now))
        outcomes = [one for entry in entries for one in self._outcome(entry, None)]
        rare = [one for one in outcomes if one.kind != ROUTINE]
        escalated = [one for one in outcomes if one.kind == ROUTINE][-RESTORED_MAX:]
        for event in sorted((*found, *rare, *escalated), key=lambda one: one.at):
            self._add(event)

    def note(self, received: Received, _source: MessageOrigin, now: float) -> None:
        """Add the events that a received message proves."""
        accepted = received.result is ValidationResult.ACCEPT
        for signed in (*((received.signed,) if accepted else ()), *received.settled):
            for event in self._of(signed, now):
                self._add(event)

    def look_at_slashed(self, slashed: frozenset[PeerId]) -> None:
        """Add an event for each of the slashed keys whose account a final page has slashed.

        A node forgets old commits, and one that joined by pages never had them: the accounts alone
        prove those slashes.
        """
        replica = self._replica
        for peer in sorted(slashed - self._slashed):
            account = replica.intake.accounts.account(peer)
            if account is None or account.slashed < 0:
                continue  # messages prove this slash
            self._slashed.add(peer)
            if peer not in replica.ledger.workers.forks:
                at = replica.manifest.epoch_start(account.slashed)
                text = f"slashed by the final page of epoch {account.slashed}"
                self._add(RunEvent(f"slashed/{peer}", at, "slashed", peer, text))

    def look_at_state(self, stage: Stage, now: float) -> None:
        """Add an event if the node's own state has changed."""
        if stage.state == self._state:
            return
        before, self._state = self._state, stage.state
        if not before:
            return  # the initial state is no change
        text = f"this node is {stage.state}" + (f": {stage.reason}" if stage.reason else "")
        kind: EventKind = "paused" if stage.state == "paused" else "state"
        key = f"state/{self._me}/{now:.3f}"
        self._add(RunEvent(key, now, kind, self._me, text))

    def _add(self, event: RunEvent) -> None:
        name = self._replica.roster.name_of(PeerId(event.subject))
        self._event_log.add(replace(event, name=name))

    def _of(self, signed: Signed[Any] | None, now: float) -> Iterator[RunEvent]:
        ledger = self._replica.ledger
        match signed.message if signed is not None else None:
            case Certificate(commit=commit):
                entry = ledger.commits.entries.get(Digest(commit))
                if entry is not None:
                    yield from self._outcome(entry, now)
            case RolloutCommit() if signed is not None and signed.signer in ledger.workers.forks:
                yield self._fork(signed.signer, ledger.workers.forks[signed.signer], now)
            case CheckpointManifest(version=version):
                yield from self._leader(version)
            case Evidence():
                yield from self._excluded(now)
            case _:
                pass

    def _outcome(self, entry: Entry, now: float | None) -> Iterator[RunEvent]:
        """Yield the events of an unusual outcome; ``now`` is None for an old one."""
        certificate, worker = entry.certificate, entry.commit.signer
        if certificate is None:
            return
        at = self._replica.manifest.epoch_start(entry.epoch + 1) if now is None else now
        commit, evidence = entry.commit.digest.hex(), (certificate.digest.hex(),)
        if certificate.message.escalated:
            said = "certified" if certificate.message.accepted else f"rejected: {entry.reason}"
            text = f"rollout escalated to the larger committee: {said}"
            yield RunEvent(f"escalated/{commit}", at, "escalated", worker, text, evidence, commit)
        lied = entry.state is CommitState.REJECTED and entry.reason in SLASHABLE_REASONS
        if lied and self._replica.manifest.credit.slash:
            text = f"slashed for {entry.reason}: its further commits are ignored"
            yield RunEvent(f"slashed/{worker}", at, "slashed", worker, text, evidence, commit)
        if entry.state is CommitState.REJECTED and entry.trained_in is not None:
            text = f"version {entry.trained_in} was trained on a rejected rollout"
            yield RunEvent(
                f"trained/{commit}", at, "rejected-trained", worker, text, evidence, commit
            )

    def _fork(self, worker: str, commits: tuple[Digest, Digest], now: float) -> RunEvent:
        entry = self._replica.ledger.commits.entries.get(commits[1])
        at, slot = now, ""
        if entry is not None:
            message = entry.commit.message
            at = self._replica.manifest.epoch_start(message.epoch)
            slot = f" {message.slot}"
            if message.evaluation:
                slot = f" {message.slot} of the evaluation of version {message.version}"
        evidence = tuple(commit.hex() for commit in commits)
        text = f"signed two commits for slot{slot}: slashed"
        return RunEvent(f"fork/{worker}", at, "fork", worker, text, evidence, evidence[1])

    def _leaders(self) -> Iterator[RunEvent]:
        for version in range(self._replica.ledger.chain.version + 1):
            yield from self._leader(version)

    def _leader(self, version: int) -> Iterator[RunEvent]:
        """Yield an event if a version has another publisher than the one before."""
        ledger = self._replica.ledger
        manifest, before = ledger.chain.get(version), ledger.chain.get(version - 1)
        if manifest is None or (before is not None and before.signer == manifest.signer):
            return
        text = "published the first version"
        if before is not None:
            text = f"took over as trainer with version {version}, term {manifest.message.term}"
        at, digest = manifest.message.created_at / 1000, manifest.digest.hex()
        yield RunEvent(f"leader/{digest}", at, "leader", manifest.signer, text, (digest,))

    def _excluded(self, now: float) -> Iterator[RunEvent]:
        """Yield an event per validator with proven conflicting verdicts."""
        for evidence, validator, commit in contradictions(self._replica):
            text = "signed two conflicting verdicts on one rollout: the council removes it"
            yield RunEvent(
                f"excluded/{validator}",
                now,
                "excluded",
                validator,
                text,
                (evidence.digest.hex(),),
                commit.hex(),
            )
