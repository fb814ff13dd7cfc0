"""Ports that pass everything on: a behaviour overrides the one thing that it lies about."""

from collections.abc import Callable

from protocol.manifest import RunManifest
from protocol.types import PeerId
from roles.ports.engines import (
    Engines,
    Environment,
    GenerationEngine,
    TrainingEngine,
    VerificationEngine,
)
from roles.ports.transport import Stream, StreamHandler, Transport


class PassingStream:
    """The ``Stream`` port."""

    def __init__(self, honest: Stream) -> None:
        self._honest = honest

    @property
    def peer(self) -> PeerId:
        """The honest stream's other end."""
        return self._honest.peer

    async def read(self, bytes_max: int) -> bytes:
        """Read; raises ``TransportError``."""
        return await self._honest.read(bytes_max)

    async def read_exactly(self, count: int) -> bytes:
        """Read so much; raises ``TransportError``."""
        return await self._honest.read_exactly(count)

    async def write(self, data: bytes) -> None:
        """Write; raises ``TransportError``."""
        await self._honest.write(data)

    def offer(self, data: bytes) -> bool:
        """Write if nothing waits before it."""
        return self._honest.offer(data)

    async def close(self) -> None:
        """Close both directions."""
        await self._honest.close()


class PassingTransport:
    """The ``Transport`` port."""

    def __init__(self, honest: Transport) -> None:
        self._honest = honest

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._honest.peer_id

    async def addresses(self) -> list[str]:
        """Return our addresses."""
        return await self._honest.addresses()

    async def connect(self, address: str) -> PeerId:
        """Dial; raises ``TransportError``."""
        return await self._honest.connect(address)

    async def disconnect(self, peer: PeerId) -> None:
        """Drop the connection to ``peer``."""
        await self._honest.disconnect(peer)

    async def peers(self) -> list[PeerId]:
        """Return who is connected."""
        return await self._honest.peers()

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Open a stream; raises ``TransportError``."""
        return await self._honest.open_stream(peer, protocol)

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve ``protocol``."""
        await self._honest.handle(protocol, handler)


class OtherEngines:
    """The ``Engines`` port, with what is given in place of what the honest one makes."""

    def __init__(
        self,
        honest: Engines,
        *,
        environment: Callable[[Environment, RunManifest], Environment] | None = None,
        generation: Callable[[GenerationEngine], GenerationEngine] | None = None,
        verification: Callable[[VerificationEngine], VerificationEngine] | None = None,
    ) -> None:
        self._honest = honest
        self._environment = environment
        self._generation = generation
        self._verification = verification

    def environment(self, manifest: RunManifest) -> Environment:
        """Return the run's task, or the other one."""
        honest = self._honest.environment(manifest)
        return honest if self._environment is None else self._environment(honest, manifest)

    def generation(self, manifest: RunManifest) -> GenerationEngine:
        """Return an engine for an inference node, or the other one."""
        honest = self._honest.generation(manifest)
        return honest if self._generation is None else self._generation(honest)

    def verification(self, manifest: RunManifest) -> VerificationEngine:
        """Return an engine for a validator, or the other one."""
        honest = self._honest.verification(manifest)
        return honest if self._verification is None else self._verification(honest)

    def training(self, manifest: RunManifest) -> TrainingEngine:
        """Return an engine for a trainer."""
        return self._honest.training(manifest)


def word_of(protocol: str) -> str:
    """Return what a stream is for: the last word of its protocol's name."""
    return protocol.rpartition("/")[2]
