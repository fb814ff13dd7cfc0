import pytest

from protocol.consensus.equivocation import EquivocationTable
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from protocol.messages import COUNCIL_MAX
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest(validators=6))
LIAR, OTHER = WORLD.validators[:2]
WORKER = WORLD.workers[0]
COMMIT = WORLD.commit(WORKER, epoch=7)


def table(*pieces, members=tuple(WORLD.validators)) -> EquivocationTable:
    peers = {one.peer_id for one in members}
    result = EquivocationTable(WORLD.run_id, verify, peers.__contains__)
    for piece in pieces:
        assert result.offer(piece) is True
    return result


def test_evidence_names_the_member_that_signed_two_verdicts():
    piece = WORLD.evidence(LIAR, COMMIT)
    result = table(piece)
    assert LIAR.peer_id in result
    assert OTHER.peer_id not in result
    assert result.evidence == {LIAR.peer_id: piece}


def test_evidence_names_the_member_whose_verdict_does_not_fit_its_seal():
    verdict = WORLD.verdict(LIAR, COMMIT)
    seals = [WORLD.verdict_seal(WORLD.verdict(LIAR, COMMIT, detail=text)) for text in "ab"]
    for pair in ((seals[0], verdict), (verdict, seals[0]), seals):
        first, second = (one.envelope for one in pair)
        piece = WORLD.evidence(LIAR, COMMIT, first=first, second=second)
        assert list(table(piece).evidence) == [LIAR.peer_id]


def test_one_piece_about_a_member_is_enough():
    first = WORLD.evidence(LIAR, COMMIT)
    result = table(first)
    again = WORLD.evidence(LIAR, WORLD.commit(WORKER, epoch=3), signer=OTHER)
    for piece in (first, again):
        assert result.offer(piece) is False
    assert result.evidence == {LIAR.peer_id: first}


def test_evidence_about_a_key_without_a_seat_is_not_kept():
    """Keys are free, and their verdicts decide nothing."""
    result = table(members=[OTHER])
    assert result.offer(WORLD.evidence(LIAR, COMMIT)) is False
    assert result.offer(WORLD.evidence(WORKER, COMMIT)) is False
    assert not result.evidence


def test_evidence_is_bounded_by_the_seats():
    result = table(*(WORLD.evidence(one, COMMIT) for one in WORLD.validators))
    for epoch in range(20):
        for validator in WORLD.validators:
            piece = WORLD.evidence(validator, WORLD.commit(WORKER, epoch=epoch))
            assert result.offer(piece) is False
    assert len(result.evidence) == len(WORLD.validators)
    assert result.evidence.limit == COUNCIL_MAX


def flawed() -> dict:
    """Return invalid evidence by its fault."""
    foreign = World(run_manifest(validators=5))
    accepting, rejecting = (WORLD.verdict(LIAR, COMMIT, accept=accept) for accept in (True, False))
    elsewhere = WORLD.verdict(LIAR, WORLD.commit(WORKER, tokens=11), accept=False)
    return {
        "one verdict twice": {"second": accepting.envelope},
        "two accepting verdicts": {"second": WORLD.verdict(LIAR, COMMIT, detail="again").envelope},
        "verdicts of two validators": {
            "second": WORLD.verdict(OTHER, COMMIT, accept=False).envelope
        },
        "verdicts on two commits": {"second": elsewhere.envelope},
        "verdicts for two pages": {
            "second": WORLD.verdict(LIAR, COMMIT, accept=False, page=bytes(32)).envelope
        },
        "a verdict and its seal": {"second": WORLD.verdict_seal(accepting).envelope},
        "a seal twice": dict.fromkeys(("first", "second"), WORLD.verdict_seal(accepting).envelope),
        "a seal of another validator": {
            "second": WORLD.verdict_seal(WORLD.verdict(OTHER, COMMIT)).envelope
        },
        "another commit": {"commit": WORLD.commit(WORKER, tokens=11).envelope},
        "another run": {"second": foreign.verdict(LIAR, COMMIT, accept=False).envelope},
        "a commit of another run": {"commit": foreign.commit(WORKER, epoch=7).envelope},
        "a forged signature": {"second": rejecting.envelope[:-1] + b"x"},
        "another kind": {"commit": accepting.envelope},
    }


@pytest.mark.parametrize("name", sorted(flawed()))
def test_evidence_that_proves_nothing_is_a_fault(name):
    result = table()
    fault = result.offer(WORLD.evidence(LIAR, COMMIT, **flawed()[name]))
    assert isinstance(fault, Fault)
    assert fault.code == "bad-evidence"
    assert not result.evidence
