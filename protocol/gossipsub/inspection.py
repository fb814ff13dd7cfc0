"""The router's knowledge of its peers, for people; no decision depends on it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from protocol.core.types import PeerId
from protocol.gossipsub.mesh import Mesh
from protocol.gossipsub.params import Params
from protocol.gossipsub.peer_score import PeerCounts, Scores


class ScoreLevel(StrEnum):
    """Restrictions by score; each level includes those before it."""

    GOOD = "good"
    NO_MESH = "no-mesh"
    NO_GOSSIP = "no-gossip"
    NO_PUBLISH = "no-publish"
    GRAYLISTED = "graylisted"


@dataclass(frozen=True, slots=True)
class PeerReport:
    """One connected peer; ``backoff_seconds``, by topic, is how long a GRAFT is a violation."""

    peer: PeerId
    score: float
    level: ScoreLevel
    chosen: bool
    """True if we dialled it by our own choice."""
    mesh: tuple[str, ...]
    """Topics of the meshes it is in."""
    backoff_seconds: dict[str, float]
    counts: PeerCounts


def level_of(score: float, params: Params) -> ScoreLevel:
    """Return the level of a score."""
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
    """Return the report of each peer."""
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
