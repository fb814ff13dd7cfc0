"""Invites to a run: each has a number, and one number is never given to two keys.

Two invites of one number prove that who signed them cheats, and admit nobody. So the numbers that a
key has given are in a file beside it, one line for each, written before the invite is shown.
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
    """Return an invite of ``guest`` from ``now`` on; ``numbers`` is the file of those given.

    Who is invited again keeps the number. Raises ``NodeError``.
    """
    rules, key = manifest.admission, public_key_from_peer_id(guest)
    if rules.rule != "invite":
        raise NodeError(f"this run is {rules.rule!r}: nobody needs an invite", ExitCode.USAGE)
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
    """Return the number of a guest, written down if it is a new one."""
    try:
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            guests = text.splitlines()  # a line that a crash has cut short is a number, too
            if guest in guests:
                return guests.index(guest)
            if quota is not None and len(guests) >= quota:
                raise NodeError(f"all {quota} invites of this key are given", ExitCode.CONFIG)
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{guest}\n")
            file.flush()
            os.fsync(file.fileno())
            return len(guests)
    except OSError as error:
        raise NodeError(f"cannot use {path}: {error.strerror}", ExitCode.LOCKED) from None
