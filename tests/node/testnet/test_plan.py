from pathlib import Path

from node.testnet.plan import CHEATER_KINDS, Options
from protocol.core.types import Role


def test_relays_come_first_and_every_name_is_used_once():
    members = list(Options(Path("t"), relays=2, cheaters=12).members())
    names = [name for name, _, _ in members]
    assert [role for _, role, _ in members][:2] == [Role.RELAY, Role.RELAY]
    assert len(set(names)) == len(names) == 2 + 1 + 3 + 3 + 12


def test_cheaters_take_the_kinds_in_turn():
    members = list(Options(Path("t"), cheaters=8).members())
    liars = [(name, behaviour) for name, _, behaviour in members if behaviour]
    assert [behaviour for _, behaviour in liars] == [*CHEATER_KINDS, *CHEATER_KINDS[:2]]
    assert liars[0][0] == "stale-weights"
    assert liars[6][0] == "stale-weights-2"
    assert all(role is Role.INFERENCE for _, role, behaviour in members if behaviour)
