"""Order independence of the fork report: two nodes learn of the same forks in another order."""

from node.api.forks import forks_told
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest())
FIRST, SECOND = WORLD.workers[:2]


def node(*messages):
    replica = WORLD.replica(roster_at=1)
    for signed in messages:
        replica.receive(signed.envelope, WORLD.at(1))
    return replica


def commits(worker):
    return [WORLD.commit(worker, body=bytes([n]) * 32) for n in range(3)]


def test_nobody_has_forked():
    assert forks_told(node(*commits(FIRST)[:1])) == ()


def test_the_words_do_not_depend_on_what_came_first():
    one, two = commits(FIRST), commits(SECOND)
    told = forks_told(node(*one, *two))
    assert told == forks_told(node(*reversed(two), *reversed(one)))
    assert len(told) == 2
    assert {FIRST.peer_id, SECOND.peer_id} == {line.split()[1] for line in told}
    assert all(line.endswith("for the rest of the run") for line in told)
    slashes = WORLD.manifest.credit.slash
    assert ("its reputation has ended" in told[0]) == slashes
