from types import SimpleNamespace

from node.weights.downloads import MEMBERS_SECONDS, SECONDS_PER_MEMBER, Downloads
from protocol.core.crypto import Identity
from protocol.shardcast.forest import ForestMember
from tests.worlds.messages import World, run_manifest


class Clock:
    seconds = 0.0

    def now(self):
        return self.seconds


def test_who_feeds_whom_is_worked_out_again_only_when_something_has_changed():
    world = World(run_manifest())
    replica, clock = world.replica(), Clock()
    clock.seconds = world.at(0)
    downloads = Downloads(SimpleNamespace(clock=clock), replica, None)
    members = downloads.members()
    validators = {one.peer_id for one in world.validators}
    assert {member.peer for member in members if member.reachable} == validators
    assert downloads.members() is members

    clock.seconds = world.at(1)
    assert downloads.members() is members, "an epoch later they are the same"

    worker = world.workers[0]
    replica.receive(world.record(worker, ("relay",)).envelope, clock.now())
    assert downloads.members() is members, "a large roster changes many times a second"
    clock.seconds += MEMBERS_SECONDS
    joined = downloads.members()
    assert [member.peer for member in joined if not member.trusted] == [worker.peer_id]
    assert not next(member for member in joined if not member.trusted).reachable

    commit = world.commit(worker)
    replica.receive(commit.envelope, world.at(0))
    replica.receive(world.certificate(commit).envelope, world.at(2))
    assert all(member.trusted for member in downloads.members())

    clock.seconds = world.at(100)
    assert list(downloads.members()) == []


def test_a_crowd_is_looked_at_less_often():
    world = World(run_manifest())
    replica, clock = world.replica(), Clock()
    clock.seconds = world.at(0)
    crowd = [Identity(number.to_bytes(32, "big")) for number in range(1, 301)]
    for one in crowd[1:]:
        replica.receive(world.record(one, ("relay",)).envelope, clock.now())
    downloads = Downloads(SimpleNamespace(clock=clock), replica, None)
    members = downloads.members()
    replica.receive(world.record(crowd[0], ("relay",)).envelope, clock.now())
    clock.seconds += MEMBERS_SECONDS
    assert downloads.members() is members
    clock.seconds = world.at(0) + SECONDS_PER_MEMBER * len(replica.roster)
    assert crowd[0].peer_id in {member.peer for member in downloads.members()}


def test_members_are_what_the_forest_takes():
    world = World(run_manifest())
    clock = Clock()
    clock.seconds = world.at(0)
    downloads = Downloads(SimpleNamespace(clock=clock), world.replica(), None)
    assert all(isinstance(member, ForestMember) for member in downloads.members())
