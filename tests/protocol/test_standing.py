"""How much of the ledger keys without standing may take together."""

import pytest

from protocol import standing
from protocol.ledger.commits import CommitState
from protocol.types import ValidationResult
from tests.worlds.messages import World, found, identity, run_manifest

ACCEPT, IGNORE = ValidationResult.ACCEPT, ValidationResult.IGNORE
WORLD = World(run_manifest())
STRANGERS = [identity(f"stranger {number}") for number in range(6)]
NOW = WORLD.at(1)


def take(here, signed, **options):
    return here.receive(signed.envelope, NOW, **options).result


@pytest.fixture
def full(monkeypatch):
    """Return a replica that holds as many commits of strangers as it may."""
    monkeypatch.setattr(standing, "STRANGER_COMMITS_MAX", 4)
    here = WORLD.replica()
    assert [take(here, WORLD.commit(one)) for one in STRANGERS[:4]] == [ACCEPT] * 4
    return here


@pytest.mark.parametrize("anti_entropy", [False, True])
def test_strangers_have_so_many_commits_under_way_together(full, anti_entropy):
    late = WORLD.commit(STRANGERS[4])
    assert take(full, late, anti_entropy=anti_entropy) is IGNORE
    assert late.digest not in full.ledger.entries


def test_who_has_standing_is_not_held_up_by_strangers(monkeypatch):
    monkeypatch.setattr(standing, "STRANGER_COMMITS_MAX", 4)
    here, worker = WORLD.replica(), WORLD.workers[0]
    first = WORLD.commit(worker)
    take(here, first)
    here.ledger.offer_certificate(WORLD.certificate(first), found())
    for one in STRANGERS:
        take(here, WORLD.commit(one))
    assert sum(here.ledger.unsettled.values()) == 4
    previous = first.digest
    for slot in range(1, 7):
        commit = WORLD.commit(worker, slot, previous)
        assert take(here, commit) is ACCEPT
        previous = commit.digest
    assert take(here, WORLD.commit(STRANGERS[5])) is IGNORE


def test_an_outcome_makes_room(full):
    late, settled = WORLD.commit(STRANGERS[4]), next(iter(full.ledger.entries))
    full.ledger.offer_certificate(WORLD.certificate(full.ledger.entries[settled].commit), found())
    assert take(full, late) is ACCEPT


def test_what_others_have_certified_is_taken_however_full_it_is(full):
    """Else who holds other commits would follow another chain of versions."""
    late = WORLD.commit(STRANGERS[4])
    assert take(full, WORLD.certificate(late)) is IGNORE
    assert take(full, late, anti_entropy=True) is ACCEPT
    full.advance(NOW)
    assert full.ledger.entries[late.digest].state is CommitState.CERTIFIED
