"""The vocabulary that every layer shares.

Time is always unix seconds as ``float`` unless a name says otherwise; a version counts published
policies (0 is the genesis policy); an epoch counts ``epoch_seconds`` from the run's genesis.

Rates in classes: what is measured twice seldom agrees to the byte, and need not.

Class *c* holds the rates from ``2 ** (c / 2)`` bytes a second on, up to the next class: steps of
1.41. Coarser ones cost balance, finer ones change with every measurement.
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
"""Nodes of a run; a bound on memory, some 1 KB each on a roster. Four times the largest run that we
simulate."""


class Role(StrEnum):
    """What a node does for the run; a node may hold several."""

    INFERENCE = "inference"
    VALIDATOR = "validator"
    TRAINER = "trainer"
    RELAY = "relay"


class Topic(StrEnum):
    """The gossip topics of a run; on the wire each is prefixed with the run id."""

    COMMITS = "commits"
    CERTIFICATES = "certificates"
    CHECKPOINTS = "checkpoints"
    ROSTER = "roster"
    EVIDENCE = "evidence"


class ValidationResult(StrEnum):
    """What an application validator says of a gossiped message before it is relayed."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REJECT = "reject"


RATE_CLASS_MAX = 106
"""Of 2^53 bytes a second, the largest number of a message."""


def rate_class(bytes_per_second: int) -> int:
    """Return the class of a rate; 0 for one byte a second and for none."""
    return (max(1, bytes_per_second) ** 2).bit_length() - 1


def rate_of_class(number: int) -> int:
    """Return the bytes a second from which on a rate is in a class, rounded up."""
    root = isqrt(1 << number)
    return root if root * root == 1 << number else root + 1
