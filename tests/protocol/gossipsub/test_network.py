"""Twenty routers under a virtual clock: every router delivers every message once."""

import pytest

from protocol.core.rng import Rng
from protocol.gossipsub.events import PeerDisconnected, Publish, Subscribe
from protocol.gossipsub.params import Params
from tests.protocol.gossipsub.nodes import PEERS, TOPIC, Network

NODES = PEERS[:20]


def swarm(seed: str, *, loss: float, degree: int, params: Params | None = None) -> Network:
    """Return a warm network: a ring plus random chords, so it is connected by construction."""
    rng = Rng(seed.encode())
    network = Network(rng.child("network"), loss=loss)
    for who in NODES:
        network.add(who, params or Params())
        network.act(who.peer_id, Subscribe(TOPIC))
    ids = [who.peer_id for who in NODES]
    for index, peer in enumerate(ids):
        network.connect(peer, ids[index - 1])
        for other in rng.sample([each for each in ids if each != peer], degree // 2 - 1):
            network.connect(peer, other)
    network.run(3)
    return network


def everybody_has(network: Network, author, data: bytes) -> bool:
    return all(
        network.delivered[who.peer_id].count(data) == (who.peer_id != author) for who in NODES
    )


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_without_loss_the_mesh_alone_delivers_in_a_second(seed):
    network = swarm(seed, loss=0.0, degree=8)
    for who in NODES:
        network.act(who.peer_id, Publish(TOPIC, who.peer_id.encode()))
    network.run(1)
    assert all(everybody_has(network, who.peer_id, who.peer_id.encode()) for who in NODES)
    assert network.blamed == []
    meshes = [len(router.mesh_peers(TOPIC)) for router in network.routers.values()]
    assert max(meshes) <= 12


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_relays_that_wait_a_little_deliver_as_much_with_fewer_duplicates(seed):
    duplicates = []
    for wait_seconds in (0.0, 0.5):
        network = swarm(seed, loss=0.0, degree=8, params=Params(relay_wait_seconds=wait_seconds))
        for who in NODES:
            network.act(who.peer_id, Publish(TOPIC, who.peer_id.encode()))
        network.run(3)
        assert all(everybody_has(network, who.peer_id, who.peer_id.encode()) for who in NODES)
        assert network.blamed == []
        duplicates.append(network.duplicates)
    assert duplicates[1] < 0.8 * duplicates[0]


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_heavy_loss_is_recovered_by_gossip_in_a_few_heartbeats(seed):
    network = swarm(seed, loss=0.4, degree=8)
    for who in NODES:
        network.act(who.peer_id, Publish(TOPIC, who.peer_id.encode()))
    network.run(8)
    assert all(everybody_has(network, who.peer_id, who.peer_id.encode()) for who in NODES)
    assert network.blamed == []


def test_a_mesh_that_lost_all_pushes_lives_on_ihave_alone():
    """A mesh of at most one peer in a sparse graph: most deliveries need IWANT."""
    thin = Params(mesh_low=1, mesh_size=1, mesh_high=1, mesh_keep_by_score=1, mesh_outbound=0)
    network = swarm("thin", loss=0.2, degree=6, params=thin)
    author = NODES[0].peer_id
    network.act(author, Publish(TOPIC, b"data"))
    network.run(10)
    assert everybody_has(network, author, b"data")


def test_meshes_are_mutual_once_quiet():
    network = swarm("mutual", loss=0.0, degree=10)
    network.run(5)
    for peer, router in network.routers.items():
        for other in router.mesh_peers(TOPIC):
            assert peer in network.routers[other].mesh_peers(TOPIC)


def test_survivors_repair_their_meshes():
    network = swarm("dead", loss=0.0, degree=10)
    dead = [who.peer_id for who in NODES[1::4]]
    for peer, router in list(network.routers.items()):
        for gone in dead:
            network.links.pop((peer, gone), None)
            network.links.pop((gone, peer), None)
            router.handle(PeerDisconnected(gone), network.now)
    network.run(3)
    author = NODES[0].peer_id
    network.act(author, Publish(TOPIC, b"after"))
    network.run(5)
    for who in NODES:
        expected = who.peer_id != author and who.peer_id not in dead
        assert network.delivered[who.peer_id].count(b"after") == expected


def test_the_same_seed_gives_the_same_history():
    histories = []
    for _ in range(2):
        network = swarm("same", loss=0.3, degree=8)
        for number in range(5):
            network.act(NODES[number].peer_id, Publish(TOPIC, bytes([number])))
        network.run(4)
        histories.append((network.delivered, network.duplicates))
    assert histories[0] == histories[1]
