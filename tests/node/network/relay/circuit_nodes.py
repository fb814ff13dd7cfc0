"""Nodes of a run on a simulated network, which hold each other's records."""

from node.context import NodeContext, Ports
from protocol.core.rng import Rng
from protocol.replica.replica import Replica
from roles.ports.transport import Trust
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.network import Hub, HubPeers, LoopClock


class Node:
    """One node; a test adds its handlers."""

    def __init__(self, swarm, name):
        self.identity = identity(name)
        self.peer = self.identity.peer_id
        self.transport = swarm.hub.transport(self.peer)
        self.replica = Replica(swarm.world.manifest, lambda *_: True)
        self.peers = HubPeers(self.transport, swarm.hub)
        self.context = NodeContext(
            self.identity,
            self.replica,
            Ports(LoopClock(), Rng(name.encode()), self.transport, *[None] * 5),
            self.peers,
            ChangeSignal(),
            Conditions(),
            Trust(swarm.trusted.__contains__),
        )


class Swarm:
    """Named nodes of one run; create it in virtual time."""

    def __init__(self, *names):
        genesis = run_manifest().genesis.model_copy(update={"created_at": round(LoopClock().now())})
        self.world = World(run_manifest().model_copy(update={"genesis": genesis}))
        self.hub, self.trusted = Hub(), set()
        self.nodes = [Node(self, name) for name in names]

    def tell(self, node, *, roles=("relay",), at="/ip4/9.9.9.9/tcp/4001", **changes):
        """Add a member's record to every roster."""
        now = LoopClock().now()
        changes |= {"sequence": round(now * 1000), "joined_at": 1}
        addresses = (f"{at}/p2p/{node.peer}",)
        record = self.world.record(node.identity, roles, addresses=addresses, **changes)
        for other in self.nodes:
            other.replica.roster.offer(record, now)
        return addresses[0]
