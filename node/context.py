"""What a daemon is made of: its ports, its engines, and a study's behaviour in place of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.rng import Rng
from roles.ports.clock import Clock
from roles.ports.engines import Environment, GenerationEngine
from roles.ports.storage import Blobs, Store
from roles.ports.transport import Directory, Transport


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


class Behaviour(Protocol):
    """Replaces the ports of an inference node: how tests and studies make one lie."""

    def __call__(
        self, engine: GenerationEngine, environment: Environment
    ) -> tuple[GenerationEngine, Environment]:
        """Return what the node uses instead."""
