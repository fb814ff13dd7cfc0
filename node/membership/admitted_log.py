"""Which keys were admitted, and since when, kept over a restart: nobody else can tell us when."""

from protocol.admitted import Admission, AdmittedKeys
from protocol.codec import decode, encode
from protocol.types import PeerId
from roles.ports.storage import Delete, Put, Store

ROW_BYTES_MAX = 2048

_TABLE = "admitted"


class AdmittedLog:
    """One row for each key; losing the last of them costs these keys a second probation here."""

    def __init__(self, store: Store, keys: AdmittedKeys) -> None:
        self._store = store
        self._keys = keys

    def restore(self) -> None:
        """Take back what was known before a restart."""
        for peer, row in self._store.scan(_TABLE):
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
        """Write what has changed; raises ``StorageFullError`` and keeps it pending."""
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
        return Delete(_TABLE, key)
    inviter, number = known.number or ("", 0)
    row = {
        "proof": known.proof,
        "since": known.since,
        "until": known.until,
        "inviter": inviter,
        "number": number,
    }
    return Put(_TABLE, key, encode(row))
