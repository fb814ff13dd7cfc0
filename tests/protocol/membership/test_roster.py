import pytest

from protocol.core.crypto import verify
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Role
from protocol.membership import roster as membership
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX, Roster
from protocol.messages import PROTOCOL_VERSION
from protocol.run.manifest import epoch_hash
from tests.worlds.messages import World, identity, run_manifest

WORLD = World(run_manifest())
WORKER, VALIDATOR, TRAINER = WORLD.workers[0], WORLD.validators[0], WORLD.trainers[0]
LIFETIME_SECONDS = 50


def roster(*records, now=None):
    result = Roster(WORLD.manifest, verify)
    for record in records:
        assert result.offer(record, record.message.issued_at if now is None else now) is True
    return result


def peers(members):
    return [member.peer for member in members]


def test_the_newest_record_counts():
    old, new = (WORLD.record(WORKER, ("inference",), epoch) for epoch in (1, 2))
    result = roster(old, new)
    assert result.get(WORKER.peer_id).record == new
    assert result.offer(old, WORLD.at(2)) is False
    assert result.offer(new, WORLD.at(2)) is False
    assert result.records() == [new]


@pytest.mark.parametrize(
    ("signer", "roles", "changes", "fault"),
    [
        (WORKER, ("trainer",), {}, "not-admitted"),
        (VALIDATOR, ("validator", "trainer"), {}, "not-admitted"),
        (WORKER, ("validator", "trainer"), {}, "not-admitted"),
        (WORKER, ("emperor",), {}, "unknown-role"),
        (WORKER, ("relay",), {"protocol_version": PROTOCOL_VERSION + 1}, "protocol-version"),
        (WORKER, ("relay",), {"joined_at": 2**53}, "bad-record"),
    ],
)
def test_a_false_claim_is_a_fault_and_changes_nothing(signer, roles, changes, fault):
    result = roster()
    refused = result.offer(WORLD.record(signer, roles, **changes), WORLD.at(0))
    assert isinstance(refused, Fault)
    assert refused.code == fault
    assert result.records() == []


def test_every_admitted_key_may_be_a_validator():
    """It acts as one when a page gives it a seat."""
    record = WORLD.record(WORKER, ("inference", "validator"))
    result = roster(record)
    assert peers(result.live(WORLD.at(0), Role.VALIDATOR)) == [WORKER.peer_id]


def test_an_allowlist_is_asked_for_workers_alone():
    world = World(run_manifest(admission={"rule": "allowlist", "workers": (WORKER.peer_id,)}))
    result = Roster(world.manifest, verify)
    assert result.offer(world.record(WORKER, ("inference",)), world.at(0)) is True
    other = world.record(world.workers[1], ("inference",))
    assert result.offer(other, world.at(0)) == Fault(FaultCode.NOT_ADMITTED, "inference")
    assert result.offer(world.record(world.workers[1], ("relay",)), world.at(0)) is True


def test_clocks_may_differ_by_some_seconds():
    record = WORLD.record(WORKER, ("relay",))
    issued_at = record.message.issued_at
    early = issued_at - CLOCK_SKEW_SECONDS_MAX
    assert Roster(WORLD.manifest, verify).offer(record, early) is True
    fault = Roster(WORLD.manifest, verify).offer(record, early - 0.1)
    assert isinstance(fault, Fault)
    assert fault.code == "clock-skew"


def test_a_record_from_the_far_future_does_not_lock_its_member_in():
    result = roster()
    far = WORLD.record(WORKER, ("relay",), sequence=2**53)
    assert isinstance(result.offer(far, WORLD.at(0)), Fault)
    assert result.offer(WORLD.record(WORKER, ("relay",)), WORLD.at(0)) is True


def test_members_fall_silent_and_are_forgotten_later():
    result = roster(WORLD.record(WORKER, ("relay",)))
    issued_at = result.get(WORKER.peer_id).seen_at
    assert peers(result.live(issued_at + LIFETIME_SECONDS)) == [WORKER.peer_id]
    assert result.live(issued_at + LIFETIME_SECONDS + 0.1) == []
    result.advance(issued_at + 2 * LIFETIME_SECONDS)
    assert len(result) == 1
    assert result.get(WORKER.peer_id) is not None
    result.advance(issued_at + 2 * LIFETIME_SECONDS + 0.1)
    assert len(result) == 0
    assert result.get(WORKER.peer_id) is None


def test_a_look_at_one_member_or_from_a_place_on_says_what_the_list_says():
    signers = [*WORLD.workers[:3], *WORLD.validators[:2]]
    records = [WORLD.record(signer, ("relay",), n) for n, signer in enumerate(signers)]
    leaver = WORLD.record(WORLD.trainers[0], ("relay",), leaving=True)
    result = roster(*records, leaver)
    for now in (WORLD.at(0), WORLD.at(2), WORLD.at(2) + LIFETIME_SECONDS):
        live = result.live(now)
        everybody = [one.peer_id for one in (*signers, TRAINER)]
        assert {peer for peer in everybody if result.is_live(peer, now)} == set(peers(live))
    everybody = [record.signer for record in result.records()]
    for place in range(2 * len(result)):
        at = place % len(result)
        assert list(result.peers_from(place)) == everybody[at:] + everybody[:at]
    assert list(Roster(WORLD.manifest, verify).peers_from(3)) == []
    assert not result.is_live(identity("untrusted").peer_id, WORLD.at(0))


def test_an_old_record_is_no_news():
    record = WORLD.record(WORKER, ("relay",))
    late = record.message.issued_at + LIFETIME_SECONDS + 0.1
    assert Roster(WORLD.manifest, verify).offer(record, late) is False


def test_who_leaves_is_gone_at_once():
    stay = WORLD.record(WORKER, ("relay",), 1)
    leave = WORLD.record(WORKER, ("relay",), 2, leaving=True)
    result = roster(stay, leave)
    assert result.live(WORLD.at(2)) == []


def test_the_roster_is_bounded_and_untrusted_peers_cannot_shut_out_the_genesis_keys(monkeypatch):
    monkeypatch.setattr(membership, "MEMBERS_MAX", 3)
    untrusted = [identity(f"untrusted {n}") for n in range(5)]
    result = Roster(WORLD.manifest, verify)
    taken = [result.offer(WORLD.record(one, ("inference",)), WORLD.at(0)) for one in untrusted]
    assert taken == [True, True, True, False, False]
    # Present members may still refresh, and genesis members always fit.
    assert result.offer(WORLD.record(untrusted[0], ("inference",), 1), WORLD.at(1)) is True
    assert result.offer(WORLD.record(VALIDATOR, ("validator",)), WORLD.at(1)) is True
    assert result.offer(WORLD.record(TRAINER, ("trainer",)), WORLD.at(1)) is True


def test_untrusted_peers_do_not_shut_out_workers_that_the_manifest_names(monkeypatch):
    monkeypatch.setattr(membership, "MEMBERS_MAX", 3)
    manifest = run_manifest(admission={"rule": "allowlist", "workers": (WORKER.peer_id,)})
    world, result = World(manifest), Roster(manifest, verify)
    untrusted = [identity(f"untrusted {n}") for n in range(4)]
    taken = [result.offer(world.record(one, ("relay",)), world.at(0)) for one in untrusted]
    assert taken == [True, True, True, False]
    assert result.offer(world.record(WORKER, ("inference",)), world.at(0)) is True


def test_a_member_is_heard_at_a_bounded_rate_and_when_it_leaves():
    result = roster(WORLD.record(WORKER, ("relay",)))
    start = result.get(WORKER.peer_id).record.message.sequence

    def heard(after_ms, **changes):
        record = WORLD.record(WORKER, ("relay",), sequence=start + after_ms, **changes)
        return result.offer(record, WORLD.at(0))

    assert not any(heard(after_ms) for after_ms in range(1, 1000))
    assert heard(1, leaving=True) is True
    assert not any(heard(after_ms, leaving=after_ms % 2 == 0) for after_ms in range(2, 1000))
    assert heard(1001) is True


def test_orders_do_not_depend_on_arrival():
    records = [WORLD.record(one, ("relay",)) for one in WORLD.workers]
    one, other = roster(*records), roster(*reversed(records))
    assert one.records() == other.records()
    assert one.live(WORLD.at(0)) == other.live(WORLD.at(0))
    assert peers(one.live(WORLD.at(1), Role.RELAY)) == sorted(one.peer_id for one in WORLD.workers)


def test_every_epoch_and_run_has_its_own_hash():
    """Proofs of work are dated by one of these."""
    runs = (WORLD.manifest, run_manifest(2))
    hashes = {epoch_hash(run.run_id, epoch) for run in runs for epoch in (0, 1, 2**53 + 1)}
    assert len(hashes) == 6
