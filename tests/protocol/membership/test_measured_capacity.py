import math

import pytest

from protocol.core.crypto import public_key_from_peer_id
from protocol.core.types import RATE_CLASS_MAX, PeerId, rate_class, rate_of_class
from protocol.ledger.reputation import has_reputation
from protocol.membership.measured_capacity import UNOBSERVED_SHARE, forest_members
from protocol.membership.roster import Member
from protocol.messages import NodeRecord, Signed
from protocol.shardcast.forest import ForestMember
from tests.worlds.messages import World, identity, run_manifest

MOST = 125_000_000
CLASS = rate_class(50_000_000)


@pytest.fixture
def world() -> World:
    return World(run_manifest())


class Swarm:
    """Live members and their reports of each other."""

    def __init__(self, world: World, *, workers: int = 6) -> None:
        self.world = world
        self.genesis = [*world.validators, *world.trainers]
        self.workers = [identity(f"capable {n}") for n in range(workers)]
        self.trusted = {one.peer_id for one in (*self.genesis, *self.workers)}
        self.said: dict[PeerId, dict[PeerId, int]] = {}
        self.on_probation: set[PeerId] = set()
        self.own: dict[PeerId, dict] = {}

    def say(self, witnesses, subject, number: int) -> None:
        for witness in witnesses:
            self.said.setdefault(witness.peer_id, {})[subject.peer_id] = number

    def members(self, *untrusted) -> dict[PeerId, ForestMember]:
        live = [
            Member(self.record(one), 0.0, math.inf)
            for one in (*self.genesis, *self.workers, *untrusted)
        ]
        found = forest_members(live, self.world.manifest, self.trusted.__contains__, self.counts)
        assert [member.peer for member in found] == [member.peer for member in live]
        return {member.peer: member for member in found}

    def counts(self, peer: PeerId) -> bool:
        return peer not in self.on_probation

    def record(self, one) -> Signed[NodeRecord]:
        said = self.said.get(one.peer_id, {})
        return self.world.record(
            one,
            ("relay",),
            witnessed=tuple(public_key_from_peer_id(peer) for peer in said),
            upload_classes=tuple(said.values()),
            **self.own.get(one.peer_id, {}),
        )


def test_before_anybody_has_spoken_the_genesis_alone_feeds(world):
    swarm = Swarm(world)
    members = swarm.members()
    for one in swarm.genesis:
        assert members[one.peer_id].reachable
        assert members[one.peer_id].upload_bytes_per_second == MOST // UNOBSERVED_SHARE
    assert not any(members[one.peer_id].reachable for one in swarm.workers)


def test_three_trusted_peers_that_got_through_are_enough(world):
    swarm = Swarm(world)
    subject, *others = swarm.workers
    swarm.say(others[:2], subject, CLASS)
    assert not swarm.members()[subject.peer_id].reachable
    swarm.say(others[2:3], subject, CLASS)
    found = swarm.members()[subject.peer_id]
    assert found == ForestMember(subject.peer_id, rate_of_class(CLASS), reachable=True)


def test_words_of_untrusted_keys_and_of_itself_count_for_nothing(world):
    swarm = Swarm(world)
    untrusted = [identity(f"sybil {n}") for n in range(30)]
    subject = untrusted[0]
    swarm.say(untrusted, subject, RATE_CLASS_MAX)
    swarm.say([subject], swarm.workers[0], RATE_CLASS_MAX)
    swarm.say(swarm.workers[:1], swarm.workers[0], RATE_CLASS_MAX)
    members = swarm.members(*untrusted)
    assert not members[subject.peer_id].reachable
    assert not members[subject.peer_id].trusted
    assert not members[swarm.workers[0].peer_id].reachable


def test_a_majority_tells_whether_a_member_can_be_reached(world):
    swarm = Swarm(world)
    subject, *others = swarm.workers
    swarm.say(others[:2], subject, CLASS)
    swarm.say(others[2:4], subject, 0)
    assert not swarm.members()[subject.peer_id].reachable, "half of them is no majority"
    swarm.say(others[4:5], subject, CLASS)
    assert swarm.members()[subject.peer_id].reachable


def test_a_key_of_the_genesis_that_nobody_gets_through_to_feeds_nobody(world):
    swarm = Swarm(world)
    subject, *others = swarm.genesis
    swarm.say(others[:3], subject, 0)
    assert not swarm.members()[subject.peer_id].reachable


def test_a_member_is_believed_no_more_than_the_manifest_and_itself_allow(world):
    swarm = Swarm(world)
    subject, *others = swarm.workers
    swarm.say(others, subject, RATE_CLASS_MAX)
    assert swarm.members()[subject.peer_id].upload_bytes_per_second == MOST
    swarm.own[subject.peer_id] = {"upload_bytes_per_second": 12_345}
    assert swarm.members()[subject.peer_id].upload_bytes_per_second == 12_345
    swarm.own[subject.peer_id] = {"upload_bytes_per_second": 2**53}
    assert swarm.members()[subject.peer_id].upload_bytes_per_second == MOST
    swarm.own[subject.peer_id] = {"reachable": False}
    assert not swarm.members()[subject.peer_id].reachable


def test_a_quarter_of_liars_moves_no_rate_up_and_fewer_than_three_none_down(world):
    swarm = Swarm(world, workers=9)
    subject, *others = swarm.workers
    swarm.say(others, subject, CLASS)
    swarm.say(others[:2], subject, RATE_CLASS_MAX)
    assert swarm.members()[subject.peer_id].upload_bytes_per_second == rate_of_class(CLASS)
    swarm.say(others[:5], subject, 1)
    assert swarm.members()[subject.peer_id].upload_bytes_per_second == rate_of_class(CLASS)
    swarm.say(others[:6], subject, 1)
    assert swarm.members()[subject.peer_id].upload_bytes_per_second == rate_of_class(1)


def test_reputation_is_of_the_genesis_or_of_certified_work(world):
    replica = world.replica()
    worker = world.workers[0]
    has = has_reputation(worker.peer_id, world.manifest, replica.ledger)
    assert not has
    assert has_reputation(world.validators[0].peer_id, world.manifest, replica.ledger)
    assert has_reputation(world.trainers[0].peer_id, world.manifest, replica.ledger)
    commit = world.commit(worker)
    replica.receive(commit.envelope, world.at(0))
    assert not has_reputation(worker.peer_id, world.manifest, replica.ledger), "a promise is free"
    replica.receive(world.certificate(commit).envelope, world.at(2))
    assert has_reputation(worker.peer_id, world.manifest, replica.ledger)
    lied = world.chain(worker, 2)[1]
    replica.receive(lied.envelope, world.at(0))
    replica.receive(world.certificate(lied, accepted=False, escalated=True).envelope, world.at(2))
    assert not has_reputation(worker.peer_id, world.manifest, replica.ledger)


def test_rates_fall_into_classes_and_back():
    assert rate_class(0) == rate_class(1) == 0
    assert rate_class(2**53) == RATE_CLASS_MAX
    for number in range(3, RATE_CLASS_MAX + 1):
        least = rate_of_class(number)
        assert rate_class(least) == number
        assert rate_class(least - 1) == number - 1
        assert least**2 >= 2**number > (least - 1) ** 2


def test_who_is_on_probation_feeds_nobody(world):
    swarm = Swarm(world)
    new_node = identity("new node")
    swarm.say(swarm.workers, new_node, 40)
    assert swarm.members(new_node)[new_node.peer_id].reachable
    swarm.on_probation.add(new_node.peer_id)
    assert not swarm.members(new_node)[new_node.peer_id].reachable
