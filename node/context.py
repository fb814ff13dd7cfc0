"""What a daemon is made of: the outside of a node, behind ports."""

from dataclasses import dataclass

from protocol.rng import Rng
from roles.ports.clock import Clock
from roles.ports.storage import Blobs, PolicyFiles, Store
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
    files: PolicyFiles
