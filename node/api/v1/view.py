"""Read-only view of the daemon for the API."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.api.observer import Observer
from protocol.core.types import PeerId
from protocol.run.manifest import SignedManifest
from protocol.shardcast.forest import ForestMembers
from roles.ports.engines import Environment


@dataclass(frozen=True, slots=True)
class NodeView:
    """The parts of a daemon that the API reads."""

    manifest: SignedManifest
    observer: Observer
    task: Callable[[], Environment | None]
    forest: Callable[[], ForestMembers]
    round_trips: Callable[[], Mapping[PeerId, float]]
