"""Validators that save work: one copies verdicts, one does not repeat the sampling."""

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, Version
from protocol.messages import Verdict
from protocol.replica.replica import Replica
from protocol.rollout.statistics import Measurement
from protocol.rollout.witness import WitnessValue
from roles.ports.engines import VerificationRequest
from roles.ports.transport import TransportError
from simulations.adversaries.passthrough import OtherEngines, PassingVerification
from simulations.adversaries.validators import VerdictRewritingTransport, accept_everything
from simulations.ports.parts import Parts


class CopyingTransport(VerdictRewritingTransport):
    """Seals an invented verdict; then sends the first verdict of another member as its own."""

    @override
    def verdict_for(self, peer: PeerId, own: Verdict, replica: Replica) -> Verdict:
        pool, me = replica.verdicts.pool(Digest(own.commit), own.page), self.parts.signer.peer_id
        other = next((one for key, one in pool.verdicts.items() if key != me), None)
        if other is None:
            raise TransportError("nothing to copy yet")
        return other.message.model_copy(update={"nonce": own.nonce})


class UnreplayedVerification(PassingVerification):
    """States the body's own token wherever it should repeat the sampling."""

    @override
    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        measured = await super().measure(version, requests, temperature)
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
