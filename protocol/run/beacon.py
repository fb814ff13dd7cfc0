"""The randomness of an epoch: agreed by everyone without a message, and predictable by everyone.

A verifiable beacon would come in here.
"""

from functools import lru_cache

from protocol.core.crypto import digest
from protocol.core.types import Digest, RunId

EPOCHS_KEPT = 256
"""Of which it is remembered: it is asked for with every message about a commit."""


@lru_cache(maxsize=EPOCHS_KEPT)
def beacon(run_id: RunId, epoch: int) -> Digest:
    """Return ``H(run || epoch)``."""
    return digest(b"prime-node/beacon" + run_id + epoch.to_bytes(8, "big"))
