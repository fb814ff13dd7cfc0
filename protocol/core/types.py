"""Types and units that every layer shares.

Time is unix seconds as ``float`` unless a name says otherwise. A version counts published policies
(0 is the genesis policy). An epoch counts ``epoch_seconds`` from the run's genesis.

Rates are published in classes, because two measurements seldom agree exactly. Class *c* begins at
``2 ** (c / 2)`` bytes/s: steps of 1.41. Coarser steps cost load balance, finer ones change with
every measurement.
"""

from enum import StrEnum
from math import isqrt
from typing import NewType

PeerId = NewType("PeerId", str)
"""libp2p peer id of an Ed25519 key, base58 of the identity multihash (``12D3KooW…``)."""

Digest = NewType("Digest", bytes)
"""32 bytes of BLAKE3."""

RunId = NewType("RunId", bytes)
"""Digest of the canonical run manifest."""

Epoch = NewType("Epoch", int)
Version = NewType("Version", int)

DIGEST_BYTES = 32

MEMBERS_MAX = 20_000
"""Maximum members of a run, about 1 KB each on a roster: four times the largest simulated run."""


class Role(StrEnum):
    """A node's task in the run; a node may hold several."""

    INFERENCE = "inference"
    VALIDATOR = "validator"
    TRAINER = "trainer"
    RELAY = "relay"


class Topic(StrEnum):
    """Gossip topics of a run; the wire name is prefixed with the run id."""

    COMMITS = "commits"
    CERTIFICATES = "certificates"
    CHECKPOINTS = "checkpoints"
    ROSTER = "roster"
    EVIDENCE = "evidence"
    PAGES = "pages"


class ValidationResult(StrEnum):
    """Result of the application's check of a gossiped message, before it is forwarded."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REJECT = "reject"


RANKS_MAX = 1024
"""Processes that may compute a step together; a guess, far above the GPUs of one machine."""

RATE_CLASS_MAX = 106
"""Class of 2^53 bytes/s, the largest number in a message."""


def rate_class(bytes_per_second: int) -> int:
    """Return the class of a rate; 0 for 0 or 1 byte/s."""
    return (max(1, bytes_per_second) ** 2).bit_length() - 1


def rate_of_class(number: int) -> int:
    """Return the lowest rate of a class in bytes/s, rounded up."""
    root = isqrt(1 << number)
    return root if root * root == 1 << number else root + 1
