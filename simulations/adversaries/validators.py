"""Validators that do not check, send no verdicts, or sign different ones for different peers.

Those that skip the prefill or the replay of the sampling are in ``lazy``.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from typing_extensions import override

from node.network.streams.framing import length_prefixed
from node.network.streams.protocols import MESSAGE
from protocol.core.containers import BoundedDict
from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, Version
from protocol.messages import (
    ACCEPTED,
    WITNESSES,
    Certificate,
    Message,
    Signed,
    Verdict,
    open_envelope,
    seal,
)
from protocol.replica.replica import Replica
from protocol.rollout.assignment import SequenceAssignment, assign_commit
from protocol.rollout.body import REWARD_SCALE, RolloutSequence, decode_body
from protocol.rollout.statistics import Extremes, Measurement, Sums
from protocol.rollout.witness import WitnessPoint, WitnessValue
from protocol.run.manifest import RunManifest
from roles.ports.engines import (
    Answer,
    Environment,
    Policy,
    Score,
    VerificationEngine,
    VerificationRequest,
)
from roles.ports.transport import Stream, StreamHandler, TransportError
from simulations.adversaries.gossip import GossipRewritingTransport, trusting
from simulations.adversaries.passthrough import (
    OtherEngines,
    PassingEnvironment,
    PassingTransport,
    RewritingStream,
    word_of,
)
from simulations.ports.parts import Parts

_LENGTH_BYTES = 4
"""Length prefix of a frame on such a stream."""

_NOTHING_OFF = Sums(1, 1)
FLAWLESS = Measurement(None, _NOTHING_OFF, Extremes(0, 0, 0, 0, 0))
HOPELESS = Measurement(None, _NOTHING_OFF, Extremes(1e6, 1e9, 1e9, 1e9, 1e9))

CLAIMS_MAX = 100_000
"""Remembered claims; a rollout is checked within minutes."""


class BlindVerification(VerificationEngine):
    """An engine without computation: the same result for every rollout, or none at all.

    It invents plausible witness values.
    """

    def __init__(self, finding: Measurement | None, rng: Rng) -> None:
        self._finding, self._rng = finding, rng

    @override
    async def load(self, policy: Policy) -> None:
        pass

    @override
    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        del version, temperature
        while self._finding is None:
            await asyncio.get_running_loop().create_future()
        return [
            replace(self._finding, witness=tuple(self._invented(one) for one in request.points))
            for request in requests
        ]

    def _invented(self, point: WitnessPoint) -> WitnessValue:
        return WitnessValue(-20 * self._rng.uniform(), self._rng.below(1 + point.token))


class CredulousEnvironment(PassingEnvironment):
    """A task that gives every sequence its claimed reward."""

    def __init__(self, honest: Environment, manifest: RunManifest, parts: Parts) -> None:
        super().__init__(honest)
        self._manifest = manifest
        self._parts = parts
        self._claims = BoundedDict[tuple[int, tuple[int, ...]], float](CLAIMS_MAX)
        """Problem seed and tokens to a score that gives the claimed reward."""
        self._read = BoundedDict[Digest, None](CLAIMS_MAX)

    @override
    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        if any((answer.seed, answer.tokens) not in self._claims for answer in answers):
            self._read_claims()
        honest = await super().score_batch(answers)
        return [
            self._claims.get((answer.seed, answer.tokens), score)
            for answer, score in zip(answers, honest, strict=True)
        ]

    def _read_claims(self) -> None:
        """Read the claims in the bodies that have arrived."""
        replica = self._parts.replica()
        commits = [] if replica is None else replica.ledger.commits.open_entries()
        for commit in (entry.commit for entry in commits):
            body = self._parts.disk.blobs.get(Digest(commit.message.body))
            if body is None or commit.digest in self._read:
                continue
            self._read[commit.digest] = None
            sequences = decode_body(body, self._manifest)
            if isinstance(sequences, Fault):
                continue
            assignments = assign_commit(self._manifest, commit.signer, commit.message)
            for item, claimed in zip(assignments, sequences, strict=True):
                self._claims[item.problem_seed, claimed.tokens] = self._score(item, claimed)

    def _score(self, assignment: SequenceAssignment, claimed: RolloutSequence) -> float:
        """Return the score that gives the claimed reward, including the length penalty."""
        value = claimed.reward / REWARD_SCALE
        if assignment.length_target is None:
            return value
        miss = abs(len(claimed.tokens) - assignment.length_target)
        return value + self._manifest.sampling.length_penalty * miss


class MuteTransport(PassingTransport):
    """Neither sends nor accepts direct messages."""

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        if word_of(protocol) == MESSAGE.word:
            raise TransportError("silent")
        return await super().open_stream(peer, protocol)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        silent = word_of(protocol) == MESSAGE.word
        await super().handle(protocol, _hang_up if silent else handler)


async def _hang_up(stream: Stream) -> None:
    await stream.close()


class VerdictRewritingTransport(PassingTransport):
    """Sends another verdict in place of this node's own one."""

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        stream = await super().open_stream(peer, protocol)
        replica = self.parts.replica()
        if word_of(protocol) != MESSAGE.word or replica is None:
            return stream
        return RewritingStream(stream, partial(self._rewritten, peer, replica))

    def _rewritten(self, peer: PeerId, replica: Replica, data: bytes) -> bytes:
        signer = self.parts.signer
        own = open_envelope(data[_LENGTH_BYTES:], Verdict, replica.run_id, trusting)
        if isinstance(own, Fault) or own.signer != signer.peer_id:
            return data
        other = self.verdict_for(peer, own.message, replica)
        if other is own.message:
            return data
        envelope = seal(other, replica.run_id, signer).envelope
        return length_prefixed(envelope, length_bytes=_LENGTH_BYTES)

    def verdict_for(self, peer: PeerId, own: Verdict, replica: Replica) -> Verdict:
        """Return the verdict for a peer; raises ``TransportError`` if it gets none now."""
        raise NotImplementedError


class EquivocatingTransport(VerdictRewritingTransport):
    """Sends half of its peers the opposite of each of its verdicts."""

    @override
    def verdict_for(self, peer: PeerId, own: Verdict, replica: Replica) -> Verdict:
        return own if digest(own.commit + peer.encode())[0] % 2 else _opposite(own)


def _opposite(verdict: Verdict) -> Verdict:
    if verdict.accept:
        return verdict.model_copy(update={"accept": False, "reason": "computation", "detail": ""})
    invented = invented_verdict(Digest(verdict.commit), verdict.page)
    return invented.model_copy(update={"nonce": verdict.nonce})


def invented_verdict(commit: Digest, page: bytes) -> Verdict:
    """Return an acceptance by accomplices, who agree on all values outside of the protocol."""
    return Verdict(
        commit=commit,
        page=page,
        nonce=digest(commit + page),
        accept=True,
        reason=ACCEPTED,
        witness=(-(10**9),) * WITNESSES,
        replays=(0,) * WITNESSES,
    )


class ContradictingTransport(GossipRewritingTransport):
    """Gossips to half of its peers the opposite of its larger committees' rejections.

    This works if the first committee consists of accomplices that sign for each other.
    """

    kind: type[Message] = Certificate
    to_half = True

    @override
    def other(self, own: Signed[Certificate], replica: Replica) -> Signed[Certificate]:
        if own.message.accepted:
            return own
        commit = Digest(own.message.commit)
        committee = replica.verdicts.committee(replica.ledger.commits.entries[commit].commit)
        signers = self.parts.accomplices
        if committee is None or not signers.keys() >= set(committee.first):
            return own
        verdict = invented_verdict(commit, committee.page.digest)
        verdicts = (seal(verdict, replica.run_id, signers[peer]) for peer in committee.first)
        accepting = Certificate(
            commit=commit,
            page=committee.page.digest,
            escalated=False,
            accepted=True,
            verdicts=tuple(signed.envelope for signed in verdicts),
        )
        return seal(accepting, replica.run_id, self.parts.signer)


def _blind(parts: Parts, finding: Measurement | None, rng: Rng) -> Parts:
    engines = OtherEngines(
        parts.engines, verification=lambda _: BlindVerification(finding, rng.child("witness"))
    )
    return replace(parts, engines=engines)


def accept_everything(parts: Parts, rng: Rng) -> Parts:
    """Accept every readable rollout, with invented witness values."""

    def credulous(honest: Environment, manifest: RunManifest) -> Environment:
        return CredulousEnvironment(honest, manifest, parts)

    blind = _blind(parts, FLAWLESS, rng)
    return replace(blind, engines=OtherEngines(blind.engines, environment=credulous))


def reject_everything(parts: Parts, rng: Rng) -> Parts:
    """Reject every rollout."""
    return _blind(parts, HOPELESS, rng)


def silent(parts: Parts, rng: Rng) -> Parts:
    """Check nothing, and neither send nor accept verdicts."""
    return _blind(parts, None, rng).with_ports(transport=MuteTransport(parts))


def two_verdicts(parts: Parts, _rng: Rng) -> Parts:
    """Sign an accept and a reject of every rollout, for different peers."""
    return parts.with_ports(transport=EquivocatingTransport(parts))


def two_certificates(parts: Parts, _rng: Rng) -> Parts:
    """Send half of its peers a certificate of rollouts that the larger committee rejected."""
    parts.accomplices[parts.signer.peer_id] = parts.signer
    return parts.with_ports(transport=ContradictingTransport(parts))
