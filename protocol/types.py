"""The vocabulary that every layer shares.

Time is always unix seconds as ``float`` unless a name says otherwise; a version counts published
policies (0 is the genesis policy); an epoch counts ``epoch_seconds`` from the run's genesis.
"""

from enum import StrEnum
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
