"""Numbered invites to a run; a number is never given to two keys.

Two invites with one number prove that their signer cheats, and admit no node. So the numbers that a
key has issued are in a file beside it, one line each, written before the invite is printed.
"""

import fcntl
import os
from pathlib import Path

from node.local.errors import ExitCode, NodeError
from protocol.core.crypto import Identity, public_key_from_peer_id
from protocol.core.types import PeerId
from protocol.messages import Invite, Signed, seal
from protocol.run.manifest import RunManifest


def invite(
    manifest: RunManifest, inviter: Identity, numbers: Path, guest: PeerId, now: float, days: float
) -> Signed[Invite]:
    """Return an invite of ``guest`` from ``now`` on; ``numbers`` is the file of issued numbers.

    A repeated invite keeps its number. Raises ``NodeError``.
    """
    rules, key = manifest.admission, public_key_from_peer_id(guest)
    if rules.rule != "invite":
        raise NodeError(f"this run is {rules.rule!r}: it needs no invites", ExitCode.USAGE)
    if key is None:
        raise NodeError(f"{guest!r} is not a peer id; prime-node id shows one", ExitCode.USAGE)
    is_creator = inviter.peer_id == manifest.genesis.creator
    quota = None if is_creator else rules.inviters.get(inviter.peer_id, 0)
    if quota == 0:
        raise NodeError(f"{inviter.peer_id} may not invite to this run", ExitCode.CONFIG)
    message = Invite(
        key=key,
        number=_number(numbers, guest, quota),
        epoch=manifest.epoch_at(now),
        until=manifest.epoch_at(now + days * 86_400),
    )
    return seal(message, manifest.run_id, inviter)


def _number(path: Path, guest: PeerId, quota: int | None) -> int:
    """Return the number of a guest; a new number is recorded first."""
    try:
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            guests = text.splitlines()  # a line truncated by a crash counts, too
            if guest in guests:
                return guests.index(guest)
            if quota is not None and len(guests) >= quota:
                raise NodeError(f"all {quota} invites of this key are used", ExitCode.CONFIG)
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{guest}\n")
            file.flush()
            os.fsync(file.fileno())
            return len(guests)
    except OSError as error:
        raise NodeError(f"cannot use {path}: {error.strerror}", ExitCode.LOCKED) from None
