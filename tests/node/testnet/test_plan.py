from pathlib import Path

from node.testnet.plan import CHEATER_KINDS, LAZY_KINDS, Options, role_of
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


def test_lazy_validators_are_additional_members_of_the_genesis():
    members = list(Options(Path("t"), validators=3, lazy_validators=3).members())
    validators = [(name, kind) for name, role, kind in members if role is Role.VALIDATOR]
    assert [name for name, kind in validators if not kind] == [f"validator-{n}" for n in (1, 2, 3)]
    assert [kind for _, kind in validators[3:]] == [*LAZY_KINDS, LAZY_KINDS[0]]
    assert validators[5][0] == f"{LAZY_KINDS[0]}-2"
    assert {role_of(kind) for kind in LAZY_KINDS} == {Role.VALIDATOR}
