"""Lazy mesh maintenance equals maintenance at every heartbeat."""

from hypothesis import event, given, settings
from hypothesis import strategies as st

from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.gossipsub.mesh import Mesh
from protocol.gossipsub.params import Params
from protocol.gossipsub.peer_score import Scores

PEERS = [PeerId(f"peer {number}") for number in range(9)]
PARAMS = Params(
    mesh_size=3, mesh_low=2, mesh_high=5, mesh_keep_by_score=1, mesh_outbound=1, mesh_trusted_min=1,
    prune_backoff_seconds=4, seek_seconds_max=16, opportunistic_graft_seconds=11,
)  # fmt: skip

peers = st.sampled_from(PEERS)
topics = st.sampled_from(["one", "two"])
steps = st.one_of(
    st.tuples(st.just("join"), topics),
    st.tuples(st.just("grafts"), topics, st.lists(peers, max_size=6)),
    st.tuples(st.just("prune"), topics, peers),
    st.tuples(st.just("leave"), topics),
    st.tuples(st.just("subscribe"), topics, peers),
    st.tuples(st.just("drop"), topics, peers),
    st.tuples(st.just("trusted"), st.frozensets(peers, max_size=3)),
    st.tuples(st.just("chosen"), peers),
    st.tuples(st.just("breach"), peers, st.integers(1, 9)),
    st.tuples(st.just("delivery"), topics, peers),
)


class World:
    """A mesh, its inputs and its outputs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scores = Scores(PARAMS.score)
        self.trusted = frozenset[PeerId]()
        self.chosen = dict[PeerId, None]()
        self.subscribers = {"one": dict.fromkeys(PEERS[:6]), "two": dict.fromkeys(PEERS[3:])}
        for peer in PEERS:
            self.scores.connect(peer, 0.0)
        self.mesh = Mesh(PARAMS, Rng(b"mesh"), self.scores, self.chosen.keys, lambda: self.trusted)
        self.said: list[object] = []

    def heartbeat(self) -> None:
        self.now += 1
        self.scores.heartbeat(self.now)
        self.mesh.expire(self.now)
        self.said.append(self.mesh.maintain_all(self.subscribers.__getitem__, self.now))

    def do(self, step) -> None:
        match step:
            case "trusted", some:
                self.trusted = some
            case "chosen", peer:  # the same view changes
                if self.chosen.pop(peer, peer) is not None:
                    self.chosen[peer] = None
            case "breach", peer, count:
                self.scores.breach(peer, count)
            case "delivery", topic, peer:
                self.scores.first_delivery(peer, topic)
            case _:
                self.change(step)

    def change(self, step) -> None:
        """Change the members of the mesh, or the candidates."""
        mesh, now = self.mesh, self.now
        match step:
            case "join", topic if topic not in mesh:
                self.said.append(mesh.join(topic, self.subscribers[topic], now))
            case "leave", topic if topic in mesh:
                self.said.append(mesh.leave(topic, now))
            case "grafts", topic, some:
                known = filter(self.subscribers[topic].__contains__, some)
                self.said.append([mesh.grafted_by(topic, peer, now) for peer in known])
            case "prune", topic, peer:
                mesh.pruned_by(topic, peer, 0, now)
            case "subscribe", topic, peer:
                self.subscribers[topic][peer] = None
            case "drop", topic, peer:
                self.subscribers[topic].pop(peer, None)
                mesh.drop(peer, [topic])


@settings(max_examples=300)
@given(st.lists(st.tuples(steps, st.integers(0, 6)), min_size=5, max_size=40))
def test_skipped_maintenance_changes_no_decision(given_steps):
    lazy, eager = World(), World()
    saved = 0
    for step, heartbeats in [(("join", "one"), 1), (("join", "two"), 3), *given_steps]:
        lazy.do(step)
        eager.do(step)
        for _ in range(heartbeats):
            saved += sum(lazy.now + 1 < due for due in lazy.mesh._due_at.values())
            eager.mesh._due_at.clear()
            lazy.heartbeat()
            eager.heartbeat()
        assert lazy.said == eager.said
    event(f"looks saved: {min(saved, 10)}")
