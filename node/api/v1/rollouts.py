"""Rollouts of a node's ledger, with text if the node holds the body."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from node.api.v1.answers import (
    Drawn,
    Limit,
    RolloutDetail,
    RolloutPage,
    RolloutRow,
    SequenceDetail,
    VerdictDetail,
)
from node.api.v1.queries import RolloutQuery
from node.context import NodeContext
from protocol.consensus.committee import draw
from protocol.core.containers import BoundedDict
from protocol.core.types import DIGEST_BYTES, Digest
from protocol.ledger.commits import CommitState, Entry
from protocol.messages import RolloutCommit, Signed, Verdict, open_envelope
from protocol.rollout.assignment import SequenceAssignment, assign_commit
from protocol.rollout.audit import read_body
from protocol.rollout.body import REWARD_SCALE, RolloutSequence
from protocol.rollout.statistics import explained
from roles.ports.engines import EngineError, Environment
from roles.runtime.scoring import Task

SEQUENCES_MAX = 64
"""Sequences of a rollout that are decoded to text; two groups of most recipes."""

TEXT_CHARACTERS_MAX = 8_000
"""Limit of a prompt or a completion."""

REWARDS_BYTES_MAX = 128 * 1024
"""Largest body read for the mean reward in a list; a page of them takes 50 ms."""

REWARDS_REMEMBERED = 4096

UNDECIDED = "no committee decided in time"
NO_PAGE = "no page drew its committee in time"
"""Reasons of expired rollouts."""

NO_BODY = (
    "This node does not hold the body. Its worker, its committee and the trainer keep it while it "
    "may be trained on."
)
NO_TASK = "This node has no task and cannot decode the tokens."


class RolloutReader:
    """The rollouts of one node; ``task`` returns the run's task, None before its download."""

    def __init__(self, context: NodeContext, task: Callable[[], Environment | None]) -> None:
        self._context = context
        self._task = task
        self._rewards = BoundedDict[Digest, float](REWARDS_REMEMBERED)

    async def page(self, query: RolloutQuery) -> RolloutPage:
        """Return the rows that match a query, newest first."""
        ledger = self._context.replica.ledger
        wanted = [entry for entry in self._newest_first() if _is_wanted(entry, query)]
        chosen, older = query.page(wanted, [entry.commit.digest.hex() for entry in wanted])
        rows = [replace(self.row(one), reward=await self._reward(one)) for one in chosen]
        reasons = tuple(sorted(+ledger.workers.totals.reasons))
        return RolloutPage(tuple(rows), len(wanted), older, reasons)

    def _newest_first(self) -> Iterator[Entry]:
        ledger = self._context.replica.ledger
        yield from reversed(ledger.commits.entries.values())
        yield from reversed(ledger.commits.kept.values())

    def row(self, entry: Entry) -> RolloutRow:
        """Return the summary of a commit."""
        message, certificate = entry.commit.message, entry.certificate
        expired = entry.state is CommitState.EXPIRED
        if certificate is not None:  # all of its verdicts agree with it
            count, accepted = len(certificate.message.verdicts), certificate.message.accepted
            accepts, rejects = (count, 0) if accepted else (0, count)
        else:
            verdicts = self._verdicts(entry)
            accepts = sum(verdict.message.accept for verdict in verdicts)
            rejects = len(verdicts) - accepts
        return RolloutRow(
            commit=entry.commit.digest.hex(),
            worker=entry.commit.signer,
            version=message.version,
            slot=message.slot,
            epoch=message.epoch,
            at=self._context.replica.manifest.epoch_start(message.epoch),
            sequences=message.sequences,
            tokens=message.tokens,
            state=entry.state.value,
            reason=self._undecided(entry) if expired else entry.reason,
            escalated=certificate is not None and certificate.message.escalated,
            accepts=accepts,
            rejects=rejects,
            trained_in=entry.trained_in,
            name=self._context.replica.roster.name_of(entry.commit.signer),
        )

    def _undecided(self, entry: Entry) -> str:
        """Return the reason for which a rollout has expired."""
        replica, epoch = self._context.replica, entry.commit.message.epoch
        page = replica.pages.drawing(entry.commit.digest)
        last = epoch + replica.manifest.committee.expire_after_epochs
        return NO_PAGE if page is None or page.epoch > last else UNDECIDED

    async def _reward(self, entry: Entry) -> float | None:
        """Return the mean claimed reward of a body up to ``REWARDS_BYTES_MAX``."""
        commit = entry.commit
        if commit.digest not in self._rewards and commit.message.body_bytes <= REWARDS_BYTES_MAX:
            body = await self._body(commit)
            if body:
                self._rewards[commit.digest] = _mean_reward(body)
        return self._rewards.get(commit.digest)

    async def _body(self, commit: Signed[RolloutCommit]) -> list[RolloutSequence] | None:
        """Return the sequences of the body; None if it is missing or does not match the commit."""
        digest, length = Digest(commit.message.body), commit.message.body_bytes
        if self._context.ports.blobs.size(digest) != length:
            return None
        data = await self._context.ports.blobs.get(digest)
        if data is None:
            return None
        found = read_body(self._context.replica.manifest, commit.message, data)
        return found if isinstance(found, list) else None

    def _verdicts(self, entry: Entry) -> list[Signed[Verdict]]:
        """Return the verdicts of the certificate, and others received."""
        replica, certificate = self._context.replica, entry.certificate
        found: dict[str, Signed[Verdict]] = {}
        for envelope in certificate.message.verdicts if certificate is not None else ():
            # Signatures were verified when the certificate was received.
            verdict = open_envelope(envelope, Verdict, replica.run_id, lambda *_: True)
            if isinstance(verdict, Signed):
                found[verdict.signer] = verdict
        if entry.commit.digest in replica.ledger.commits.entries:
            for signer, verdict in replica.verdicts.held(entry.commit.digest).items():
                found.setdefault(signer, verdict)
        return list(found.values())

    async def shown(self, commit: str) -> RolloutDetail | None:
        """Return a rollout in full by its hexadecimal commit digest; None if unknown."""
        ledger, digest = self._context.replica.ledger, _digest(commit)
        entry = ledger.commits.known(digest)
        if entry is None:
            return None
        body = await self._body(entry.commit)
        sequences, note = await self._sequences(entry, body)
        found = self.detail(entry)
        row = replace(found.row, reward=_mean_reward(body) if body else None)
        return replace(found, row=row, sequences=sequences, note=note)

    def detail(self, entry: Entry) -> RolloutDetail:
        """Return a rollout with its verdicts, without its text."""
        message, certificate = entry.commit.message, entry.certificate
        drawn = self._drawn(entry)
        return RolloutDetail(
            row=self.row(entry),
            checkpoint=message.checkpoint.hex(),
            body=message.body.hex(),
            body_bytes=message.body_bytes,
            committee=drawn,
            verdicts=self._verdicts_shown(entry, drawn),
            certificate="" if certificate is None else certificate.digest.hex(),
            certified_by="" if certificate is None else certificate.signer,
            sequences_total=message.sequences,
        )

    def _drawn(self, entry: Entry) -> Drawn:
        """Return the committee that decided, or else the one that this node's chain draws."""
        replica, commit, certificate = self._context.replica, entry.commit, entry.certificate
        if certificate is None:
            page = replica.pages.drawing(commit.digest)
        else:
            page = replica.pages.page(certificate.message.page)
        committee = None if page is None else draw(replica.manifest, page, commit)
        if committee is None:
            return Drawn()
        drawn = committee.first, committee.escalated, committee.quorum
        return Drawn(committee.page.epoch, *drawn)

    def _verdicts_shown(self, entry: Entry, drawn: Drawn) -> tuple[VerdictDetail, ...]:
        ranks = {peer: rank for rank, peer in enumerate(drawn.escalated)}
        replica, tokens = self._context.replica, entry.commit.message.tokens
        shown = [
            VerdictDetail(
                validator=verdict.signer,
                place=ranks.get(verdict.signer),
                accept=verdict.message.accept,
                reason=verdict.message.reason,
                detail=verdict.message.detail,
                evidence=verdict.digest.hex(),
                measured=tuple(
                    Limit(one.name, one.value, one.allowed)
                    for one in explained(replica.manifest.toploc, verdict.message, tokens)
                ),
                name=replica.roster.name_of(verdict.signer),
            )
            for verdict in self._verdicts(entry)
        ]
        return tuple(sorted(shown, key=lambda one: (one.place is None, one.place or 0)))

    async def _sequences(
        self, entry: Entry, body: Sequence[RolloutSequence] | None
    ) -> tuple[tuple[SequenceDetail, ...], str]:
        """Return the text of a rollout, and a note on missing parts."""
        if body is None:
            return (), NO_BODY
        message, environment = entry.commit.message, self._task()
        if environment is None:
            return (), NO_TASK
        manifest, worker = self._context.replica.manifest, entry.commit.signer
        assignments = assign_commit(manifest, worker, message)[:SEQUENCES_MAX]
        try:
            pairs = await self._texts(environment, assignments, body[:SEQUENCES_MAX])
        except EngineError as error:
            return (), f"The task cannot decode the tokens: {error}"
        shown = tuple(
            _sequence(assignment, claimed, *texts)
            for assignment, claimed, texts in zip(assignments, body, pairs, strict=False)
        )
        left_out = len(body) - len(shown)
        return shown, f"{left_out} more are not shown" if left_out else ""

    async def _texts(
        self,
        environment: Environment,
        assignments: Sequence[SequenceAssignment],
        body: Sequence[RolloutSequence],
    ) -> list[tuple[str, str]]:
        """Return (prompt, completion) of each sequence; raises ``EngineError``."""
        prompts = await Task(self._context.replica.manifest, environment).prompts(assignments)
        distinct = list(dict.fromkeys(prompts))
        cut = [one.tokens[:TEXT_CHARACTERS_MAX] for one in body]
        texts = await environment.texts([*(one[:TEXT_CHARACTERS_MAX] for one in distinct), *cut])
        known = dict(zip(distinct, texts, strict=False))
        said = texts[len(distinct) :]
        return [(known[prompt], text) for prompt, text in zip(prompts, said, strict=True)]


def _mean_reward(body: Sequence[RolloutSequence]) -> float:
    return sum(one.reward for one in body) / len(body) / REWARD_SCALE


def _sequence(
    assignment: SequenceAssignment, claimed: RolloutSequence, prompt: str, completion: str
) -> SequenceDetail:
    return SequenceDetail(
        group=assignment.group,
        tokens=len(claimed.tokens),
        length_target=assignment.length_target,
        reward=claimed.reward / REWARD_SCALE,
        prompt=prompt[:TEXT_CHARACTERS_MAX],
        completion=completion[:TEXT_CHARACTERS_MAX],
        cut=max(len(prompt), len(completion), len(claimed.tokens)) > TEXT_CHARACTERS_MAX,
    )


def _is_wanted(entry: Entry, query: RolloutQuery) -> bool:
    commit = entry.commit
    return query.takes(entry.state.value, commit.signer, commit.message.version, entry.reason) and (
        entry.state is not CommitState.EXPIRED or entry.timely or bool(query.state)
    )


def _digest(commit: str) -> Digest:
    """Return the digest, or an empty one for invalid input."""
    try:
        raw = bytes.fromhex(commit)
    except ValueError:
        return Digest(b"")
    return Digest(raw if len(raw) == DIGEST_BYTES else b"")
