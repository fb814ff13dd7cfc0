"""Own proof of admission, found once and stored; log of other keys' admissions."""

import asyncio

import pytest

from node.context import NodeContext, Ports
from node.membership import admission as module
from node.membership.admission import AdmittedLog, OwnAdmission, stored_proof, why_not
from protocol.core.crypto import verify
from protocol.core.rng import Rng
from protocol.core.types import Role
from protocol.membership.admission import Admission, AdmittedKeys
from protocol.membership.proof_of_work import is_solved
from protocol.messages import Invite, seal
from protocol.replica.replica import Replica
from roles.ports.storage import StorageFullError
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, identity, run_manifest

pytestmark = pytest.mark.virtual

WORKER = identity("worker 0")
CREATOR = identity("creator")
OPEN = World(run_manifest(admission={"rule": "open", "work_bits": 8, "work_kib": 8}))
INVITED = World(run_manifest(admission={"rule": "invite"}))
INVITE = seal(
    Invite(key=WORKER.public_key, number=0, epoch=3, until=9), INVITED.run_id, CREATOR
).envelope


class Clock:
    def __init__(self, world):
        self.world, self.epoch = world, 3

    def now(self):
        return self.world.at(self.epoch)


class SlowWork:
    """Runs work inline, and advances an epoch with each piece."""

    def __init__(self, clock):
        self.clock, self.pieces = clock, 0

    async def run(self, function):
        await asyncio.sleep(1)
        result = function()
        self.pieces += 1
        if result is None:
            self.clock.epoch += 1
        return result


class Node:
    def __init__(self, world=OPEN, store=None, invite=b"", signer=WORKER):
        self.world = world
        self.clock, self.store = Clock(world), store or MemoryStore()
        self.work, self.conditions = SlowWork(self.clock), Conditions()
        ports = Ports(self.clock, Rng(b"2"), None, None, None, self.store, None, self.work)
        self.replica = Replica(world.manifest, verify)
        self.context = NodeContext(
            signer, self.replica, ports, None, ChangeSignal(), self.conditions
        )
        self.admission = OwnAdmission(self.context, invite)

    async def run(self, seconds=1000.0):
        """Run until the proof is found, or for ``seconds``; return the conditions meanwhile."""
        said = []
        task = asyncio.create_task(self.admission.run())
        for _ in range(int(seconds * 10)):
            await asyncio.sleep(0.1)
            said.append(str(self.conditions))
            if self.admission.here:
                break
        task.cancel()
        return list(dict.fromkeys(said))


async def test_work_is_done_for_the_epoch_in_which_it_is_found_and_is_stored():
    node = Node()
    assert not node.admission.here
    said = await node.run()
    assert node.admission.here
    proof, rules = node.admission.proof, OPEN.manifest.admission
    assert is_solved(rules, OPEN.run_id, WORKER.peer_id, proof)
    assert int.from_bytes(proof[:8], "big") == node.clock.epoch
    assert stored_proof(node.store) == proof
    assert node.work.pieces > 1, "it was looked at the clock meanwhile"
    assert said[1].startswith("solving the admission proof, about 8 s on average; 1 s so far")
    assert str(node.conditions) == ""


async def test_a_stored_proof_is_taken_and_a_damaged_one_is_not():
    first = Node()
    await first.run()
    again = Node(store=first.store)
    again.clock.epoch = first.clock.epoch
    await again.run()
    assert (again.admission.proof, again.work.pieces) == (first.admission.proof, 0)
    first.store.tables["admission"][b"own"] = bytes(16)
    anew = Node(store=first.store)
    await anew.run()
    assert anew.work.pieces > 0
    assert is_solved(OPEN.manifest.admission, OPEN.run_id, WORKER.peer_id, anew.admission.proof)


async def test_a_full_disk_does_not_keep_us_out():
    class Full(MemoryStore):
        async def commit(self, changes):
            raise StorageFullError("full")

    node = Node(store=Full())
    await node.run()
    assert node.admission.here


@pytest.mark.parametrize(
    ("world", "signer"),
    [(World(run_manifest()), WORKER), (OPEN, identity("validator 0")), (INVITED, CREATOR)],
)
async def test_who_needs_no_proof_is_here_at_once(world, signer):
    node = Node(world, signer=signer)
    assert node.admission.here
    assert node.admission.proof == b""


async def test_an_invite_is_kept_for_the_next_start():
    node = Node(INVITED, invite=INVITE)
    await node.run()
    assert node.admission.proof == INVITE
    again = Node(INVITED, store=node.store)
    await again.run()
    assert again.admission.proof == INVITE


async def test_a_bad_invite_is_told_and_the_kept_one_is_taken():
    node = Node(INVITED, invite=INVITE[:-1])
    said = await node.run(5)
    assert not node.admission.here
    assert said[-1].startswith("not admitted: not-admitted: no invite")
    kept = Node(INVITED, invite=INVITE)
    await kept.run()
    again = Node(INVITED, store=kept.store, invite=INVITE[:-1])
    await again.run()
    assert (again.admission.proof, str(again.conditions)) == (INVITE, "")


async def test_nobody_is_announced_who_is_not_admitted(monkeypatch):
    from node.membership.announcer import About, Announcer  # noqa: PLC0415

    node = Node(INVITED)
    announcer = Announcer(
        node.context,
        None,
        node.admission,
        About((Role.INFERENCE,), None, reachable=True, software=""),
        None,
        None,
        hint=None,
        synchronised=None,
    )
    await announcer.announce()  # would access missing parts
    await announcer.announce(leaving=True)
    assert announcer.addresses == ()


# Permanent exclusion of a key


def refused(world, key, roles, *proofs, epoch=3):
    return why_not(world.manifest, key.peer_id, roles, proofs, world.at(epoch))


def test_the_reason_names_who_can_help():
    listed = World(run_manifest(admission={"rule": "allowlist", "workers": (WORKER.peer_id,)}))
    untrusted_peer, roles = identity("untrusted"), (Role.INFERENCE,)
    assert CREATOR.peer_id in refused(listed, untrusted_peer, roles)
    assert untrusted_peer.peer_id in refused(listed, untrusted_peer, roles)
    assert refused(listed, WORKER, roles) == ""
    assert refused(listed, untrusted_peer, (Role.RELAY,)) == ""
    told = refused(INVITED, WORKER, roles)
    assert all(part in told for part in ("--invite", WORKER.peer_id, CREATOR.peer_id))
    assert refused(INVITED, WORKER, roles, INVITE) == ""
    assert refused(INVITED, CREATOR, roles) == ""
    assert refused(OPEN, untrusted_peer, roles) == ""


def test_the_role_of_a_trainer_is_refused_to_keys_that_the_run_does_not_name():
    untrusted_peer = identity("untrusted")
    told = refused(OPEN, untrusted_peer, (Role.RELAY, Role.TRAINER))
    assert told.startswith(f"this run names its trainers, and this key ({untrusted_peer.peer_id})")
    assert OPEN.manifest.genesis.creator in told
    trainer = OPEN.manifest.genesis.trainers[0]
    assert why_not(OPEN.manifest, trainer, (Role.TRAINER,), (), OPEN.at(3)) == ""


def test_any_key_that_the_run_admits_may_be_a_validator():
    """An era's draw may seat it; without a seat it does nothing."""
    untrusted_peer = identity("untrusted")
    roles = Role.INFERENCE, Role.VALIDATOR
    assert refused(OPEN, untrusted_peer, roles) == ""
    assert "--invite" in refused(INVITED, untrusted_peer, roles)
    assert refused(INVITED, WORKER, roles, INVITE) == ""


def test_an_invite_that_is_not_good_is_told_at_the_door():
    roles, untrusted_peer = (Role.INFERENCE,), identity("untrusted")
    for told in (
        refused(INVITED, untrusted_peer, roles, INVITE),
        refused(INVITED, WORKER, roles, INVITE[:-1] + b"?"),
        refused(INVITED, WORKER, roles, INVITE, epoch=10),
    ):
        assert "the invite is not good (" in told
        assert CREATOR.peer_id in told
    assert refused(INVITED, WORKER, roles, b"junk", INVITE) == "", "an earlier one is good"
    assert refused(INVITED, WORKER, roles, b"", INVITE) == ""


# Log of admissions


async def test_a_restart_remembers_since_when_keys_are_admitted():
    """It receives their records again long after; no peer could tell it the time of admission."""
    store, number = MemoryStore(), (CREATOR.peer_id, 7)
    known = {
        "one": Admission(b"proof", 3),
        "two": Admission(INVITE, 4, 9, number),
    }
    keys = AdmittedKeys(INVITED.manifest, verify)
    for peer, admission in known.items():
        keys.admit(peer, admission)
        keys.changes[peer] = admission
    log = AdmittedLog(store, keys)
    await log.flush()
    assert not keys.changes
    again = AdmittedKeys(INVITED.manifest, verify)
    AdmittedLog(store, again).restore()
    assert {peer: again.get(peer) for peer in known} == known
    assert not again.changes
    keys.changes["one"] = None
    await log.flush()
    anew = AdmittedKeys(INVITED.manifest, verify)
    AdmittedLog(store, anew).restore()
    assert anew.get("one") is None


async def test_a_full_disk_keeps_the_changes_for_later():
    class Full(MemoryStore):
        async def commit(self, changes):
            raise StorageFullError("full")

    keys = AdmittedKeys(INVITED.manifest, verify)
    keys.changes["one"] = Admission(b"proof", 3)
    with pytest.raises(StorageFullError):
        await AdmittedLog(Full(), keys).flush()
    assert keys.changes


def test_the_time_of_work_is_that_of_a_few_hashes():
    assert module.HASHES_AT_ONCE * 8 < 1000, "ms, of the most that a hash may take"
