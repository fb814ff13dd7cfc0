"""Admission of this node to the run, and a durable log of admitted keys.

The node announces itself after it has solved the proof of work or loaded its invite. Each epoch has
its own work, so a fresh proof is at most one epoch old. The proof is stored before it is used, so a
restart reuses it. A background thread does the work, a few hashes at a time.

The log keeps the time of each key's admission over a restart: no other node can supply it.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from node.context import NodeContext
from protocol.core.codec import decode, encode
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from protocol.core.types import PeerId, Role
from protocol.membership.admission import Admission, AdmittedKeys
from protocol.membership.proof_of_work import solve
from protocol.run.manifest import RunManifest
from roles.ports.storage import Delete, Put, StorageFullError, Store

log = structlog.get_logger()

HASHES_AT_ONCE = 32
"""Hashes per call to the background thread: 30 ms to 300 ms."""

NONCE_BELOW = 2**63
"""Upper bound of the random first nonce."""

_TABLE = "admission"
_KEY = b"own"


def stored_proof(store: Store) -> bytes:
    """Return the proof stored by an earlier start, empty if there is none."""
    return store.get(_TABLE, _KEY) or b""


def why_not(
    manifest: RunManifest,
    peer: PeerId,
    roles: tuple[Role, ...],
    proofs: Sequence[bytes],
    now: float,
) -> str:
    """Return the reason, in one line, why the run never admits a key; empty if it can.

    ``proofs`` are the key's invites; one that is valid at unix time ``now`` is enough.
    """
    creator = manifest.genesis.creator
    named = {Role.TRAINER: manifest.is_trainer}
    for role in roles:
        if role in named and not named[role](peer):
            return (
                f"this run names its {role}s, and this key ({peer}) is none of them; use the "
                f"--data-dir whose key it names, or another --role; only its creator ({creator}) "
                f"could have named it"
            )
    if Role.INFERENCE in roles and not manifest.admits_worker(peer):
        return (
            f"this run names its workers, and this key ({peer}) is none of them; "
            f"ask its creator ({creator}), or take another --role"
        )
    if manifest.admission.rule == "invite" and not manifest.is_exempt(peer):
        return _why_not_invited(manifest, peer, proofs, now)
    return ""


def _why_not_invited(
    manifest: RunManifest, peer: PeerId, invites: Sequence[bytes], now: float
) -> str:
    wrong = "this run takes invited keys"
    for invite in filter(None, invites):
        taken = AdmittedKeys(manifest, verify).offer(peer, invite, now)
        if not isinstance(taken, Fault):
            return ""
        wrong = f"the invite is not good ({taken})"
    inviters = ", ".join((manifest.genesis.creator, *manifest.admission.inviters))
    return (
        f"{wrong}; send this key ({peer}) to an inviter ({inviters}), "
        "and start again with --invite TOKEN"
    )


class OwnAdmission:
    """Proof of admission for this node's records; ``invite`` comes from the operator."""

    def __init__(self, context: NodeContext, invite: bytes) -> None:
        self._context = context
        self._admitted = context.replica.roster.admitted
        self._peer = context.signer.peer_id
        self._invite = invite
        self._here = asyncio.Event()
        self.proof = b""
        """Empty until found, and where the run requires none."""
        if not self._admitted.needs_proof(self._peer):
            self._here.set()

    @property
    def here(self) -> bool:
        """True if this node may announce itself."""
        return self._here.is_set()

    async def wait(self) -> None:
        """Wait until this node may announce itself."""
        await self._here.wait()

    async def run(self) -> None:
        """Find and store the proof, then wait until cancelled."""
        if not self.here:
            self.proof = await self._kept() or await self._found()
            self._context.conditions.clear("admission")
            self._here.set()
        await asyncio.Event().wait()

    async def _kept(self) -> bytes:
        """Return the invite or the stored proof if one is valid, else empty bytes."""
        for proof in (self._invite, stored_proof(self._context.ports.store)):
            if not proof:
                continue
            taken = self._admitted.offer(self._peer, proof, self._context.ports.clock.now())
            if not isinstance(taken, Fault):
                await self._keep(proof)
                return proof
            log.warning("admission proof invalid", fault=str(taken))
            self._context.conditions.set("admission", f"not admitted: {taken}")
        return b""

    async def _found(self) -> bytes:
        manifest = self._context.replica.manifest
        if manifest.admission.rule == "invite":
            await asyncio.Event().wait()  # only a restart with another invite helps
        rng = self._context.ports.rng.child("admission")
        clock, loop = self._context.ports.clock, asyncio.get_running_loop()
        began_at, tried = loop.time(), 0
        while True:
            epoch, first = manifest.epoch_at(clock.now()), rng.below(NONCE_BELOW)
            nonces = range(first, first + HASHES_AT_ONCE)
            rules, run_id = manifest.admission, manifest.run_id
            work = partial(solve, rules, run_id, self._peer, epoch, nonces)
            proof = await self._context.ports.background.run(work)
            tried += HASHES_AT_ONCE
            if proof is not None:
                break
            self._tell(loop.time() - began_at, tried)
        log.info("admission proof found", hashes=tried, seconds=round(loop.time() - began_at, 1))
        await self._keep(proof)
        return proof

    def _tell(self, seconds: float, tried: int) -> None:
        """Report the expected time of the work; hashes tried do not shorten the rest."""
        expected = 2**self._context.replica.manifest.admission.work_bits
        about_seconds = seconds / tried * expected
        self._context.conditions.wait(
            "admission",
            f"solving the admission proof, about {about_seconds:.0f} s on average; "
            f"{seconds:.0f} s so far, {tried} of about {expected} hashes",
        )

    async def _keep(self, proof: bytes) -> None:
        try:
            await self._context.ports.store.commit([Put(_TABLE, _KEY, proof)])
        except StorageFullError as error:
            log.warning("admission proof not stored", error=str(error))


ROW_BYTES_MAX = 2048

_HISTORY_TABLE = "admitted"


class AdmittedLog:
    """Table of admitted keys; a key with a lost row repeats its probation here."""

    def __init__(self, store: Store, keys: AdmittedKeys) -> None:
        self._store = store
        self._keys = keys

    def restore(self) -> None:
        """Load the keys admitted before a restart."""
        for peer, row in self._store.scan(_HISTORY_TABLE):
            match decode(row, bytes_max=ROW_BYTES_MAX):
                case {
                    "proof": bytes(proof),
                    "since": int(since),
                    "until": int() | None as until,
                    "inviter": str(inviter),
                    "number": int(number),
                }:
                    invite = (PeerId(inviter), number) if inviter else None
                    admission = Admission(proof, since, until, invite)
                    self._keys.admit(PeerId(peer.decode()), admission)

    async def flush(self) -> None:
        """Write pending changes; raises ``StorageFullError`` and keeps them pending."""
        changes = dict(self._keys.changes)
        if not changes:
            return
        await self._store.commit([_row(peer, known) for peer, known in changes.items()])
        for peer, known in changes.items():
            if self._keys.changes.get(peer) is known:
                del self._keys.changes[peer]


def _row(peer: PeerId, known: Admission | None) -> Put | Delete:
    key = peer.encode()
    if known is None:
        return Delete(_HISTORY_TABLE, key)
    inviter, number = known.number or ("", 0)
    row = {
        "proof": known.proof,
        "since": known.since,
        "until": known.until,
        "inviter": inviter,
        "number": number,
    }
    return Put(_HISTORY_TABLE, key, encode(row))
