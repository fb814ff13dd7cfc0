import pytest

from protocol.consensus.equivocation import EquivocationTracker
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest(validators=6))
LIAR, OTHER = WORLD.validators[:2]
WORKER = WORLD.workers[0]
COMMIT = WORLD.commit(WORKER, epoch=7)
FIRST_EPOCH = 7 + WORLD.manifest.committee.expire_after_epochs + 1


def equivocators(*pieces) -> EquivocationTracker:
    result = EquivocationTracker(WORLD.manifest, verify)
    for piece in pieces:
        assert result.offer(piece) is True
    return result


def test_who_signed_two_verdicts_is_excluded_from_an_epoch_that_follows_from_them():
    result = equivocators(WORLD.evidence(LIAR, COMMIT))
    assert result.excluded(FIRST_EPOCH - 1) == ()
    assert result.excluded(FIRST_EPOCH) == result.excluded(10**6) == (LIAR.peer_id,)


def test_the_earliest_exclusion_counts_in_any_order():
    early, late = (WORLD.evidence(LIAR, WORLD.commit(WORKER, epoch=epoch)) for epoch in (3, 7))
    one = equivocators(late, early)
    other = equivocators(early)
    assert other.offer(late) is False
    again = WORLD.evidence(LIAR, WORLD.commit(WORKER, epoch=3, tokens=9), signer=OTHER)
    for result in (one, other):
        assert result.offer(again) is False, "one piece of evidence is enough"
        assert result.evidence == [early]
        assert result.excluded(FIRST_EPOCH - 4) == (LIAR.peer_id,)


def test_evidence_is_bounded_by_the_validators_of_the_genesis():
    result = equivocators()
    for epoch in range(20, 0, -1):
        for validator in WORLD.validators:
            assert result.offer(WORLD.evidence(validator, WORLD.commit(WORKER, epoch=epoch)))
    assert len(result.evidence) == len(WORLD.validators)


def flawed() -> dict:
    """Return invalid evidence by its fault."""
    foreign = World(run_manifest(validators=5))
    accepting, rejecting = (WORLD.verdict(LIAR, COMMIT, accept=accept) for accept in (True, False))
    elsewhere = WORLD.verdict(LIAR, WORLD.commit(WORKER, tokens=11), accept=False)
    worker = [WORLD.verdict(WORKER, COMMIT, accept=accept).envelope for accept in (True, False)]
    return {
        "one verdict twice": {"rejecting": accepting.envelope},
        "two accepting verdicts": {
            "rejecting": WORLD.verdict(LIAR, COMMIT, detail="again").envelope
        },
        "the wrong way round": {"accepting": rejecting.envelope, "rejecting": accepting.envelope},
        "verdicts of two validators": {
            "rejecting": WORLD.verdict(OTHER, COMMIT, accept=False).envelope
        },
        "verdicts on two commits": {"rejecting": elsewhere.envelope},
        "another commit": {"commit": WORLD.commit(WORKER, tokens=11).envelope},
        "another run": {"rejecting": foreign.verdict(LIAR, COMMIT, accept=False).envelope},
        "a commit of another run": {"commit": foreign.commit(WORKER, epoch=7).envelope},
        "a forged signature": {"rejecting": rejecting.envelope[:-1] + b"x"},
        "another kind": {"commit": accepting.envelope},
        "a worker's verdicts": {"accepting": worker[0], "rejecting": worker[1]},
    }


@pytest.mark.parametrize("name", sorted(flawed()))
def test_what_proves_nothing_excludes_nobody(name):
    result = equivocators()
    fault = result.offer(WORLD.evidence(LIAR, COMMIT, **flawed()[name]))
    assert isinstance(fault, Fault)
    assert fault.code == "bad-evidence"
    assert (result.evidence, result.excluded(10**6), result.revision) == ([], (), 0)
