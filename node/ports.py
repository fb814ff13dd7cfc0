"""What a daemon is made of: its ports, its engines, and a study's behaviour in place of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.manifest import RunManifest
from protocol.rng import Rng
from roles.ports import (
    Blobs,
    Clock,
    Directory,
    Environment,
    GenerationEngine,
    Store,
    TrainingEngine,
    Transport,
    VerificationEngine,
)


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of a node."""

    clock: Clock
    rng: Rng
    transport: Transport
    directory: Directory
    blobs: Blobs
    store: Store
    weights: Path
    genesis: Path
    """Where the run's creator may have left the genesis weights."""


class Engines(Protocol):
    """Makes the engine that a role needs, when it needs it."""

    def environment(self, manifest: RunManifest) -> Environment:
        """Return the run's task."""

    def generation(self, manifest: RunManifest) -> GenerationEngine:
        """Return an engine for an inference node."""

    def verification(self, manifest: RunManifest) -> VerificationEngine:
        """Return an engine for a validator."""

    def training(self, manifest: RunManifest) -> TrainingEngine:
        """Return an engine for a trainer."""


class Behaviour(Protocol):
    """Replaces the ports of an inference node: how tests and studies make one lie."""

    def __call__(
        self, engine: GenerationEngine, environment: Environment
    ) -> tuple[GenerationEngine, Environment]:
        """Return what the node uses instead."""
