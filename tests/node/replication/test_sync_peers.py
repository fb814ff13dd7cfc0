import asyncio
from types import SimpleNamespace

import pytest

from node.context import NodeContext, Ports
from node.replication.sync_peers import PATIENCE_EPOCHS, SyncPeers
from protocol.core.rng import Rng
from protocol.replica.replica import Replica
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.messages import World, identity, run_manifest

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
OWN = identity("own")
VALIDATOR = WORLD.validators[0]


class Fixed:
    def now(self):
        return WORLD.at(1)


def name(number):
    return identity(f"peer {number}").peer_id


class Asking:
    """Numbered peers, each connected from its own address."""

    def __init__(self, **places):
        self.peers = SimpleNamespace(connected=[], places={})
        for number, place in places.items():
            self.connect(name(number), place)
        self.replica = Replica(WORLD.manifest, lambda *_: True)
        ports = Ports(Fixed(), Rng(b"1"), *[None] * 6)
        self.sources = SyncPeers(
            NodeContext(OWN, self.replica, ports, self.peers, ChangeSignal(), Conditions())
        )

    def connect(self, peer, place):
        self.peers.connected.append(peer)
        self.peers.places[peer] = (place,) if place else ()

    def tell(self, signer, *roles, at="/ip4/4.4.4.4/tcp/1", **changes):
        addresses = (f"{at}/p2p/{signer.peer_id}",)
        record = WORLD.record(signer, roles, addresses=addresses, **changes)
        assert self.replica.roster.offer(record, WORLD.at(1)) is True

    def told(self, *numbers):
        for number in numbers:
            self.sources.told(name(number))
        return self.sources.enough()


async def test_nobody_is_not_enough_and_the_only_one_there_is_is():
    asking = Asking(a="9.9.9.9")
    assert not asking.sources.enough()
    assert asking.told("a")


async def test_three_networks_are_enough_and_many_of_one_are_one():
    near = {f"n{number}": f"9.9.{number}.1" for number in range(9)}
    asking = Asking(**near, b="8.8.8.8", c="7.7.7.7", d="6.6.6.6")
    assert not asking.told(*near)
    assert not asking.told("b")
    assert asking.told("c")


async def test_who_does_not_answer_is_not_waited_for():
    asking = Asking(a="9.9.9.9", b="8.8.8.8", c="7.7.7.7")
    assert not asking.told("a")
    asking.sources.failed(name("b"))
    assert not asking.sources.enough()
    asking.sources.failed(name("c"))
    assert asking.sources.enough()


async def test_one_of_the_genesis_must_tell_while_its_record_says_that_it_is_here():
    asking = Asking(a="9.9.9.9", b="8.8.8.8", c="7.7.7.7")
    asking.tell(VALIDATOR, "validator")
    assert not asking.told("a", "b", "c")
    asking.sources.failed(VALIDATOR.peer_id)
    assert not asking.sources.enough(), "untrusted peers could have made it silent to us"
    asking.sources.told(VALIDATOR.peer_id)
    assert asking.sources.enough()


async def test_members_that_are_not_connected_count_for_a_while():
    asking = Asking(a="9.9.9.9")
    asking.tell(identity("peer b"), "relay")
    assert not asking.told("a")
    await asyncio.sleep(PATIENCE_EPOCHS * WORLD.manifest.epochs.seconds)
    assert asking.sources.enough()


async def test_those_behind_relays_are_one_network_whatever_they_are_called():
    asking = Asking(a="9.9.9.9", b=None, c=None, d=None)
    for number in "bcd":
        asking.tell(identity(f"peer {number}"), "relay", at="/ip4/4.4.4.4/tcp/1/p2p/r/p2p-circuit")
    assert not asking.told("b", "c", "d")
    assert asking.told("a")


@pytest.mark.parametrize("seed", range(5))
async def test_other_networks_are_asked_first_and_the_genesis_second(seed):
    asking = Asking(a="9.9.9.9", b="9.9.1.1", c="9.9.2.2", d="8.8.8.8")
    rng = Rng(bytes([seed]))
    first = asking.sources.next(rng)
    asking.sources.told(first)
    asking.tell(VALIDATOR, "validator", at="/ip4/9.9.4.4/tcp/1")
    assert asking.sources.next(rng) == VALIDATOR.peer_id
    asking.sources.told(VALIDATOR.peer_id)
    if first != name("d"):
        assert asking.sources.next(rng) == name("d")
    while asking.sources.next(rng) is not None:
        pass
    asking.sources.begin()
    assert asking.sources.next(rng) is not None
