"""Faults of other nodes as values: they lower scores or become evidence, and never raise."""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Self


class Blame(Enum):
    """The party at fault."""

    SENDER = auto()
    """The peer that sent it: every honest node rejects it, so no honest node forwards it."""
    AUTHOR = auto()
    """The signer: it can sign different messages for two nodes, so a forwarder is innocent."""
    NOBODY = auto()
    """Unknown: our own view, clock or software may be wrong. The message is not forwarded."""


class FaultCode(StrEnum):
    """Every fault that one node can find with another; the value appears in logs."""

    blame: Blame

    def __new__(cls, value: str, blame: Blame) -> Self:
        """Make a member of its text and its blame."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.blame = blame
        return member

    AFTER_LAST_VERSION = "after-last-version", Blame.SENDER
    BATCH_OMITTED = "batch-omitted", Blame.AUTHOR
    BATCH_PAGE = "batch-page", Blame.AUTHOR
    BATCH_SIZE = "batch-size", Blame.AUTHOR
    BAD_BLOB = "bad-blob", Blame.SENDER
    BAD_BUNDLE = "bad-bundle", Blame.AUTHOR
    BAD_CERTIFICATE = "bad-certificate", Blame.SENDER
    BAD_CHUNK = "bad-chunk", Blame.SENDER
    BAD_COUNTS = "bad-counts", Blame.SENDER
    BAD_ENVELOPE = "bad-envelope", Blame.SENDER
    BAD_EVIDENCE = "bad-evidence", Blame.SENDER
    BAD_FIELDS = "bad-fields", Blame.SENDER
    BAD_MANIFEST = "bad-manifest", Blame.SENDER
    BAD_OVERTURN = "bad-overturn", Blame.SENDER
    BAD_RECORD = "bad-record", Blame.SENDER
    BAD_ROUND = "bad-round", Blame.SENDER
    BAD_SIGNATURE = "bad-signature", Blame.SENDER
    BLOB_REQUEST_FIELDS = "blob-request-fields", Blame.SENDER
    BLOB_REQUEST_VALUES = "blob-request-values", Blame.SENDER
    CLOCK_SKEW = "clock-skew", Blame.NOBODY
    DIRECTORY_CALL = "directory-call", Blame.SENDER
    EQUIVOCATION = "equivocation", Blame.AUTHOR
    EVALUATION_SLOT = "evaluation-slot", Blame.SENDER
    EVALUATION_BATCH = "evaluation-batch", Blame.SENDER
    FORMAT = "format", Blame.SENDER
    FRAME_OVERSIZE = "frame-oversize", Blame.SENDER
    FUTURE_EPOCH = "future-epoch", Blame.AUTHOR
    GRAFT_IN_BACKOFF = "graft-in-backoff", Blame.NOBODY  # a restart loses its backoffs
    INDEX_FIELDS = "index-fields", Blame.SENDER
    INDEX_INCONSISTENT = "index-inconsistent", Blame.SENDER
    INDEX_OVERSIZE = "index-oversize", Blame.SENDER
    INDEX_SHARD = "index-shard", Blame.SENDER
    INDEX_SHARDS = "index-shards", Blame.SENDER
    INDEX_SIZES = "index-sizes", Blame.SENDER
    MESSAGE_MALFORMED = "message-malformed", Blame.SENDER
    MESSAGE_NOT_CANONICAL = "message-not-canonical", Blame.SENDER
    MESSAGE_OVERSIZE = "message-oversize", Blame.SENDER
    MESSAGE_REJECTED = "message-rejected", Blame.SENDER
    MESSAGE_SEQNO = "message-seqno", Blame.SENDER
    MESSAGE_SIGNATURE = "message-signature", Blame.SENDER
    MESSAGE_SOURCE = "message-source", Blame.SENDER
    BAD_REVEAL = "bad-reveal", Blame.SENDER
    NOT_IN_COUNCIL = "not-in-council", Blame.SENDER
    NOT_PROPOSER = "not-proposer", Blame.SENDER
    WRONG_COUNCIL = "wrong-council", Blame.SENDER
    WRONG_EPOCH = "wrong-epoch", Blame.SENDER
    WRONG_WORK = "wrong-work", Blame.SENDER
    NOT_A_TRAINER = "not-a-trainer", Blame.SENDER
    NOT_A_VALIDATOR = "not-a-validator", Blame.SENDER
    NOT_ADMITTED = "not-admitted", Blame.SENDER
    UNKNOWN_KEY = "unknown-key", Blame.NOBODY
    INVITED_TWICE = "invited-twice", Blame.AUTHOR
    NOT_CANONICAL = "not-canonical", Blame.SENDER
    OLD_DATE = "old-date", Blame.AUTHOR
    OLD_TERM = "old-term", Blame.SENDER
    OPENED_TOO_OFTEN = "opened-too-often", Blame.SENDER
    OTHER_TERM = "other-term", Blame.SENDER
    OVERSIZE = "oversize", Blame.SENDER
    PROTOCOL_VERSION = "protocol-version", Blame.NOBODY
    RPC_FLOOD = "rpc-flood", Blame.NOBODY  # our own heartbeat may be late
    RPC_MALFORMED = "rpc-malformed", Blame.SENDER
    RPC_OVERSIZE = "rpc-oversize", Blame.SENDER
    STALE_BATCH = "stale-batch", Blame.SENDER
    TOO_MANY_TOPICS = "too-many-topics", Blame.SENDER
    TRAINED_TWICE = "trained-twice", Blame.SENDER
    UNDECODABLE = "undecodable", Blame.SENDER
    UNKNOWN_ROLE = "unknown-role", Blame.NOBODY
    VERSION_REUSED = "version-reused", Blame.AUTHOR
    WRONG_CHECKPOINT = "wrong-checkpoint", Blame.NOBODY
    WRONG_GENESIS = "wrong-genesis", Blame.SENDER
    WRONG_KIND = "wrong-kind", Blame.SENDER
    WRONG_PARENT = "wrong-parent", Blame.SENDER
    WRONG_TOPIC = "wrong-topic", Blame.SENDER


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault code with its details."""

    code: FaultCode
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else str(self.code)
