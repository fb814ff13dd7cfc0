"""Beacon: the randomness of an epoch, computed without a message and predictable.

A verifiable beacon would replace it.
"""

from functools import lru_cache

from protocol.core.crypto import digest
from protocol.core.types import Digest, RunId

EPOCHS_KEPT = 256
"""Cached epochs: every message about a commit needs a beacon."""


@lru_cache(maxsize=EPOCHS_KEPT)
def beacon(run_id: RunId, epoch: int) -> Digest:
    """Return ``H(run || epoch)``."""
    return digest(b"prime-node/beacon" + run_id + epoch.to_bytes(8, "big"))
