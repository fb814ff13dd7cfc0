"""Ports that delegate every call: a behaviour overrides the one that it changes."""

from collections.abc import Callable, Collection, Sequence

from typing_extensions import override

from protocol.core.types import PeerId, Version
from protocol.rollout.statistics import Measurement
from protocol.run.manifest import RunManifest
from roles.ports.engines import (
    Answer,
    Engines,
    Environment,
    FirstToken,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
    Score,
    TrainingEngine,
    VerificationEngine,
    VerificationRequest,
)
from roles.ports.transport import Stream, StreamHandler, Transport
from simulations.ports.parts import Parts


class RewritingStream(Stream):
    """A stream that writes what ``rewrite`` makes of each write."""

    def __init__(self, honest: Stream, rewrite: Callable[[bytes], bytes]) -> None:
        self._honest = honest
        self._rewrite = rewrite

    @property
    @override
    def peer(self) -> PeerId:
        return self._honest.peer

    @override
    async def read(self, bytes_max: int) -> bytes:
        return await self._honest.read(bytes_max)

    @override
    async def read_exactly(self, count: int) -> bytes:
        return await self._honest.read_exactly(count)

    @override
    async def write(self, data: bytes) -> None:
        await self._honest.write(self._rewrite(data))

    @override
    def offer(self, data: bytes) -> bool:
        return self._honest.offer(self._rewrite(data))

    @override
    async def close(self) -> None:
        await self._honest.close()


class OverheardStream(RewritingStream):
    """A stream that passes every read to ``hear``."""

    def __init__(self, honest: Stream, hear: Callable[[bytes], None]) -> None:
        super().__init__(honest, lambda data: data)
        self._hear = hear

    @override
    async def read(self, bytes_max: int) -> bytes:
        data = await super().read(bytes_max)
        self._hear(data)
        return data


class PassingTransport(Transport):
    """The ``Transport`` port."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._honest = parts.ports.transport

    @property
    @override
    def peer_id(self) -> PeerId:
        return self._honest.peer_id

    @override
    async def addresses(self) -> list[str]:
        return await self._honest.addresses()

    @override
    async def connect(self, address: str) -> PeerId:
        return await self._honest.connect(address)

    @override
    async def disconnect(self, peer: PeerId) -> None:
        await self._honest.disconnect(peer)

    @override
    async def keep(self, peers: Collection[PeerId]) -> None:
        await self._honest.keep(peers)

    @override
    async def peers(self) -> list[PeerId]:
        return await self._honest.peers()

    @override
    async def remote_addresses(self, peer: PeerId) -> list[str]:
        return await self._honest.remote_addresses(peer)

    @override
    async def probe(self, address: str) -> None:
        await self._honest.probe(address)

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        return await self._honest.open_stream(peer, protocol)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        await self._honest.handle(protocol, handler)


class PassingGeneration(GenerationEngine):
    """The ``GenerationEngine`` port."""

    def __init__(self, honest: GenerationEngine) -> None:
        self._honest = honest

    @property
    @override
    def tokens_sampled(self) -> int:
        return self._honest.tokens_sampled

    @property
    @override
    def first_token(self) -> FirstToken | None:
        return self._honest.first_token

    @override
    async def start(self) -> None:
        await self._honest.start()

    @override
    async def stage(self, policy: Policy) -> bool:
        """Stage nothing: a dishonest worker loads another policy."""
        return False

    @override
    async def load(self, policy: Policy) -> None:
        await self._honest.load(policy)

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        return await self._honest.generate(requests, temperature)


class PassingVerification(VerificationEngine):
    """The ``VerificationEngine`` port."""

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
        return await self._honest.measure(version, requests, temperature)


class PassingEnvironment(Environment):
    """The ``Environment`` port."""

    def __init__(self, honest: Environment) -> None:
        self._honest = honest

    @property
    @override
    def name(self) -> str:
        return self._honest.name

    @override
    async def open(self) -> None:
        await self._honest.open()

    @override
    async def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        return await self._honest.prompt(seed, length_target)

    @override
    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        return await self._honest.score_batch(answers)

    @override
    async def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return await self._honest.texts(sequences)


class OtherEngines(Engines):
    """The ``Engines`` port, with some of the honest engines replaced."""

    def __init__(
        self,
        honest: Engines,
        *,
        environment: Callable[[Environment, RunManifest], Environment] = lambda one, _: one,
        generation: Callable[[GenerationEngine, RunManifest], GenerationEngine] = lambda one, _: (
            one
        ),
        verification: Callable[[VerificationEngine], VerificationEngine] = lambda one: one,
        training: Callable[[TrainingEngine, RunManifest], TrainingEngine] = lambda one, _: one,
    ) -> None:
        self._honest = honest
        self._environment = environment
        self._generation = generation
        self._verification = verification
        self._training = training

    @override
    def environment(self, manifest: RunManifest) -> Environment:
        return self._environment(self._honest.environment(manifest), manifest)

    @override
    def generation(self, manifest: RunManifest) -> GenerationEngine:
        return self._generation(self._honest.generation(manifest), manifest)

    @override
    def verification(self, manifest: RunManifest) -> VerificationEngine:
        return self._verification(self._honest.verification(manifest))

    @override
    def training(self, manifest: RunManifest) -> TrainingEngine:
        return self._training(self._honest.training(manifest), manifest)


def word_of(protocol: str) -> str:
    """Return the purpose of a stream: the last component of its protocol's name."""
    return protocol.rpartition("/")[2]


def while_acting(parts: Parts, dishonest: StreamHandler, honest: StreamHandler) -> StreamHandler:
    """Return a handler that is dishonest during the attack and honest otherwise."""

    async def serve(stream: Stream) -> None:
        await (dishonest if parts.acting() else honest)(stream)

    return serve
