import pytest

from protocol.consensus.seals import is_contradiction, matches, ordered, seal_of
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest(validators=6))
ONE, OTHER = WORLD.validators[:2]
COMMIT = WORLD.commit(WORLD.workers[0])
ELSEWHERE = WORLD.commit(WORLD.workers[1])
VERDICT = WORLD.verdict(ONE, COMMIT)
SEAL = WORLD.verdict_seal(VERDICT)
CHANGES = {
    "nonce": bytes(32),
    "page": bytes(32),
    "detail": "another",
    "chunks": 1,
    "means": (1,),
    "extremes": (1,),
    "witness": (-5,) * 8,
    "replays": (5,) * 8,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_seal_fixes_every_field(name):
    other = WORLD.verdict(ONE, COMMIT, **{name: CHANGES[name]})
    assert matches(SEAL, VERDICT)
    assert not matches(SEAL, other)
    assert seal_of(other.message, ONE.peer_id).seal != SEAL.message.seal


def test_a_seal_fixes_result_and_commit():
    assert not matches(SEAL, WORLD.verdict(ONE, COMMIT, accept=False))
    assert not matches(SEAL, WORLD.verdict(ONE, ELSEWHERE))


def test_a_copied_seal_matches_no_verdict_of_the_copier():
    """Else a member could copy the seal, get the verdict for it, and open it as its own."""
    copied = WORLD.verdict_seal(VERDICT, OTHER)
    assert copied.message == SEAL.message
    assert not matches(copied, WORLD.sealed(VERDICT.message, OTHER))


CONTRADICTING = {
    "two results": (VERDICT, WORLD.verdict(ONE, COMMIT, accept=False)),
    "two seals": (SEAL, WORLD.verdict_seal(WORLD.verdict(ONE, COMMIT, detail="other"))),
    "another seal": (SEAL, WORLD.verdict(ONE, COMMIT, detail="other")),
}


@pytest.mark.parametrize("name", CONTRADICTING)
def test_contradictions(name):
    one, other = CONTRADICTING[name]
    assert is_contradiction(one, other)
    assert is_contradiction(other, one)
    assert ordered(one, other) == ordered(other, one)


HONEST = {
    "a verdict and its seal": (VERDICT, SEAL),
    "a verdict twice": (VERDICT, VERDICT),
    "a seal twice": (SEAL, SEAL),
    "one result in other words": (VERDICT, WORLD.verdict(ONE, COMMIT, detail="other")),
    "two validators": (VERDICT, WORLD.verdict(OTHER, COMMIT, accept=False)),
    "seals of two validators": (SEAL, WORLD.verdict_seal(WORLD.verdict(OTHER, COMMIT))),
    "two commits": (VERDICT, WORLD.verdict(ONE, ELSEWHERE, accept=False)),
    "two pages": (VERDICT, WORLD.verdict(ONE, COMMIT, accept=False, page=bytes(32))),
    "a seal for another page": (SEAL, WORLD.verdict(ONE, COMMIT, page=bytes(32))),
}


@pytest.mark.parametrize("name", HONEST)
def test_no_contradictions(name):
    one, other = HONEST[name]
    assert not is_contradiction(one, other)
    assert not is_contradiction(other, one)
