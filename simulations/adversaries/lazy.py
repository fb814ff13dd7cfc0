"""Validators that save work: one copies verdicts, one does not repeat the sampling."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from typing_extensions import override

from node.network.streams.framing import length_prefixed
from node.network.streams.protocols import MESSAGE
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, Version
from protocol.messages import Verdict, open_envelope, seal
from protocol.replica.replica import Replica
from protocol.rollout.statistics import Measurement
from protocol.rollout.witness import WitnessValue
from roles.ports.engines import Policy, VerificationEngine, VerificationRequest
from roles.ports.transport import Stream, TransportError
from simulations.adversaries.gossip import trusting
from simulations.adversaries.passthrough import (
    OtherEngines,
    PassingTransport,
    RewritingStream,
    word_of,
)
from simulations.adversaries.validators import accept_everything
from simulations.ports.parts import Parts

_LENGTH_BYTES = 4
"""Length prefix of a frame on a stream of messages."""


class CopyingTransport(PassingTransport):
    """Seals an invented verdict; then sends the first verdict of another member as its own."""

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        stream = await super().open_stream(peer, protocol)
        replica = self.parts.replica()
        if word_of(protocol) != MESSAGE.word or replica is None:
            return stream
        return RewritingStream(stream, partial(self._copied, replica))

    def _copied(self, replica: Replica, data: bytes) -> bytes:
        """Return a frame with a copied verdict; raises ``TransportError`` before there is one."""
        signer = self.parts.signer
        own = open_envelope(data[_LENGTH_BYTES:], Verdict, replica.run_id, trusting)
        if isinstance(own, Fault) or own.signer != signer.peer_id:
            return data
        pool = replica.verdicts.pool(Digest(own.message.commit), own.message.page)
        others = (one for peer, one in pool.verdicts.items() if peer != signer.peer_id)
        other = next(others, None)
        if other is None:
            raise TransportError("nothing to copy yet")
        copied = other.message.model_copy(update={"nonce": own.message.nonce})
        sealed = seal(copied, replica.run_id, signer)
        return length_prefixed(sealed.envelope, length_bytes=_LENGTH_BYTES)


class UnreplayedVerification(VerificationEngine):
    """States the body's own token wherever it should repeat the sampling."""

    def __init__(self, honest: VerificationEngine) -> None:
        self._honest = honest

    @override
    async def start(self) -> None:
        await self._honest.start()

    @override
    async def load(self, policy: Policy) -> None:
        await self._honest.load(policy)

    @override
    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        measured = await self._honest.measure(version, requests, temperature)
        return [
            replace(one, witness=_unreplayed(request, one.witness))
            for request, one in zip(requests, measured, strict=True)
        ]


def _unreplayed(
    request: VerificationRequest, values: Sequence[WitnessValue]
) -> tuple[WitnessValue, ...]:
    return tuple(
        replace(value, replay=request.tokens[point.position])
        for point, value in zip(request.points, values, strict=True)
    )


def copied_verdicts(parts: Parts, rng: Rng) -> Parts:
    """Check nothing, and send the verdicts of other members."""
    blind = accept_everything(parts, rng)
    return blind.with_ports(transport=CopyingTransport(blind))


def skipped_replay(parts: Parts, _rng: Rng) -> Parts:
    """Compute the prefill, and do not repeat the sampling."""
    return replace(parts, engines=OtherEngines(parts.engines, verification=UnreplayedVerification))
