"""What the router knows of a peer, for people: nothing is decided by it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from protocol.core.types import PeerId
from protocol.gossipsub.mesh import Mesh
from protocol.gossipsub.params import Params
from protocol.gossipsub.peer_score import PeerCounts, Scores


class ScoreLevel(StrEnum):
    """What a peer's score denies it; each level all that those before it do."""

    GOOD = "good"
    NO_MESH = "no-mesh"
    NO_GOSSIP = "no-gossip"
    NO_PUBLISH = "no-publish"
    GRAYLISTED = "graylisted"


@dataclass(frozen=True, slots=True)
class PeerReport:
    """One connected peer; ``backoff_seconds`` is how long GRAFTs are still a breach, by topic."""

    peer: PeerId
    score: float
    level: ScoreLevel
    chosen: bool
    """Whether we dialled it by our own choice."""
    mesh: tuple[str, ...]
    """The topics in whose meshes it is."""
    backoff_seconds: dict[str, float]
    counts: PeerCounts


def level_of(score: float, params: Params) -> ScoreLevel:
    """Return what a score denies."""
    if score >= 0:
        return ScoreLevel.GOOD
    if score >= params.gossip_score_min:
        return ScoreLevel.NO_MESH
    if score >= params.publish_score_min:
        return ScoreLevel.NO_GOSSIP
    return ScoreLevel.NO_PUBLISH if score >= params.graylist_score_min else ScoreLevel.GRAYLISTED


def reports(
    peers: Iterable[PeerId], mesh: Mesh, scores: Scores, params: Params, now: float
) -> list[PeerReport]:
    """Return what is known of each peer."""
    waiting, chosen = mesh.waiting(now), mesh.chosen()
    meshes = {topic: mesh.members(topic) for topic in mesh.topics}
    return [
        PeerReport(
            peer,
            scores(peer),
            level_of(scores(peer), params),
            peer in chosen,
            tuple(topic for topic, members in meshes.items() if peer in members),
            waiting.get(peer, {}),
            scores.counts(peer),
        )
        for peer in peers
    ]
