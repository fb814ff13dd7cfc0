"""Every signed message, one frozen model each, and the envelope that carries it.

A message means nothing before ``open_envelope`` has checked its size, its canonical form, its
fields and its signature for this run. The id of a signed message (``Signed.digest``) covers signer,
kind, run and payload but not the signature, so a second signature does not make a second message.
"""

from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from protocol.core.types import DIGEST_BYTES, RATE_CLASS_MAX, Role
from protocol.messages.envelope import Message

VERDICT_BYTES_MAX = 1024
"""An honest envelope has at most about 700: 13 numbers and 200 characters of detail."""

EVIDENCE_BYTES_MAX = 4096
"""Two verdicts and a commit, which takes about 500."""

VERDICTS_MAX = 15
"""As many of the largest verdicts as one certificate can hold, and so the largest committee."""

BATCH_MAX = 256
"""Commits that one version may learn from; their digests take half of an envelope."""

ENCODINGS_MAX = 4
"""Of one version: byte planes, and patches of the versions that most nodes hold."""

ADMISSION_BYTES_MAX = 512
"""Proof in a record; an invite is the longest, some 300."""

WITNESSED_MAX = 32
"""Members that one record speaks for: four times what an even share is. 1.2 KB."""

PROTOCOL_VERSION = 1

SYSTEM_PORTS = 1024
"""Ports below this belong to services of a machine (RFC 6335), and no record has others connect to
them."""


DigestBytes = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


def _digest_or_empty(value: bytes) -> bytes:
    if len(value) not in (0, DIGEST_BYTES):
        raise ValueError("neither a digest nor empty")
    return value


OptionalDigest = Annotated[bytes, AfterValidator(_digest_or_empty)]
UInt = Annotated[int, Field(ge=0, le=2**53)]
RateClass = Annotated[int, Field(ge=0, le=RATE_CLASS_MAX)]
Millionths = Annotated[int, Field(ge=-(2**53), le=2**53)]
Billionths = Annotated[int, Field(ge=-(2**53), le=2**53)]
ShortText = Annotated[str, Field(max_length=200)]


class Hardware(Message):
    """What a node says its machine is; advertised, never trusted for safety."""

    kind = "hardware"
    gpu: ShortText = ""
    gpus: UInt = 0
    gpu_memory_bytes: UInt = 0
    memory_bytes: UInt = 0
    cores: UInt = 0


class NodeRecord(Message):
    """A member's own word about itself; the newest ``sequence`` counts, until it is too old."""

    kind = "node-record"
    sequence: UInt
    """Unix milliseconds of issue; strictly increasing per member."""
    joined_at: UInt
    """Unix milliseconds since when the member claims to have been here without a break."""
    roles: Annotated[tuple[str, ...], Field(max_length=len(Role))]
    addresses: Annotated[tuple[ShortText, ...], Field(max_length=8)]
    hardware: Hardware
    upload_bytes_per_second: UInt = 0
    """No more than this, by its own word; 0: it sets no limit."""
    reachable: bool
    """Whether it should be dialled, by its own word: false where others did not get through."""
    witnessed: Annotated[tuple[DigestBytes, ...], Field(max_length=WITNESSED_MAX)] = ()
    """Public keys of members that had themselves dialled back by this one."""
    upload_classes: Annotated[tuple[RateClass, ...], Field(max_length=WITNESSED_MAX)] = ()
    """Of each of them the class of the rate at which it sent, 0 when it did not answer."""
    http_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Where it serves weights by HTTP, on the host that it is connected from; 0 where it does not.
    No host: a record could name somebody else's."""
    software: ShortText
    scoring: OptionalDigest = b""
    """Digest of the scoring runtime that it has; empty for a node that does not score."""
    protocol_version: UInt
    policy_version: Annotated[int, Field(ge=-1, le=2**53)]
    """Newest policy held, -1 before the first."""
    checkpoint: OptionalDigest = b""
    """Digest of the manifest of the newest version taken; empty before the first."""
    admission: Annotated[bytes, Field(max_length=ADMISSION_BYTES_MAX)] = b""
    """What admits its key to the run (``protocol.membership.proof_of_work``); empty where nothing
    is asked."""
    leaving: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.witnessed) != len(self.upload_classes):
            raise ValueError("witnessed and upload_classes are of different lengths")
        if len(set(self.witnessed)) != len(self.witnessed):
            raise ValueError("witnessed names a key twice")
        return self

    @property
    def issued_at(self) -> float:
        """Unix seconds of issue."""
        return self.sequence / 1000


class Invite(Message):
    """An inviter's word that a key may take part: its envelope is the proof in that key's records.

    Two for different keys with one number prove that the inviter cheats, and admit neither.
    """

    kind = "invite"
    envelope_bytes_max = ADMISSION_BYTES_MAX
    key: DigestBytes
    """Public key of who is invited."""
    number: UInt
    """Of this inviter's invites, below its quota."""
    epoch: UInt
    """In which it is made."""
    until: UInt
    """The last epoch in which it counts."""


class RolloutCommit(Message):
    """A worker's promise of one finished rollout: a group of sequences for each of its prompts."""

    kind = "rollout-commit"
    epoch: UInt
    version: UInt
    checkpoint: DigestBytes
    """Digest of the signed manifest of ``version``: it names the weights and the assignment."""
    slot: UInt
    previous: OptionalDigest
    """Digest of this worker's commit for slot - 1 of the same version; empty for slot 0."""
    body: DigestBytes
    body_bytes: UInt
    sequences: UInt
    tokens: UInt


class Verdict(Message):
    """What one validator found of one commit; ``reason`` is ``accepted`` or what failed first."""

    kind = "verdict"
    envelope_bytes_max = VERDICT_BYTES_MAX
    commit: DigestBytes
    accept: bool
    reason: ShortText
    detail: ShortText = ""
    chunks: UInt = 0
    """How many chunks of proofs were compared; 0 when nothing was measured."""
    means: Annotated[tuple[Billionths, ...], Field(max_length=16)] = ()
    """The means of ``protocol.rollout.statistics.STATISTICS``, clipped values, in order."""
    extremes: Annotated[tuple[Billionths, ...], Field(max_length=16)] = ()
    """The worst single values, as ``protocol.rollout.statistics.Extremes``."""


class Certificate(Message):
    """The committee's outcome with the signed verdicts that make it; anyone can check it again."""

    kind = "certificate"
    commit: DigestBytes
    escalated: bool
    accepted: bool
    verdicts: Annotated[tuple[bytes, ...], Field(min_length=1, max_length=VERDICTS_MAX)]


class Evidence(Message):
    """Envelopes of two verdicts of one validator on one commit; who carries it does not matter."""

    kind = "evidence"
    envelope_bytes_max = EVIDENCE_BYTES_MAX
    commit: bytes
    accepting: bytes
    rejecting: bytes


class Encoding(Message):
    """Another form of a version's file, in which it travels (``protocol.shardcast.encodings``)."""

    kind = "encoding"
    base_version: Annotated[int, Field(ge=-1, le=2**53)]
    """The version that it is a patch of, -1 for none."""
    base: OptionalDigest
    """Policy digest of that version; empty for none."""
    index: DigestBytes
    index_bytes: UInt
    total_bytes: UInt

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.base_version < 0) == bool(self.base):
            raise ValueError("a base without its version, or a version without its policy")
        return self


class CheckpointManifest(Message):
    """One published policy; ``batch`` names the blob that lists the commits it learned from."""

    kind = "checkpoint-manifest"
    version: UInt
    term: UInt
    parent: OptionalDigest
    """Digest of the signed manifest of version - 1; empty for version 0."""
    policy: DigestBytes
    index: DigestBytes
    """Of the weights' file as it is."""
    index_bytes: UInt
    total_bytes: UInt
    encodings: Annotated[tuple[Encoding, ...], Field(max_length=ENCODINGS_MAX)] = ()
    state: OptionalDigest = b""
    """Index of the optimiser state, for the next trainer in line; empty where none is published."""
    state_index_bytes: UInt = 0
    state_bytes: UInt = 0
    batch: Annotated[tuple[DigestBytes, ...], Field(max_length=BATCH_MAX)] = ()
    """Commits that this version learned from."""
    reward_mean: Millionths = 0
    """Mean verified reward of the batch, millionths."""
    created_at: UInt
    """Unix milliseconds."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(encoding.base_version >= self.version for encoding in self.encodings):
            raise ValueError("a patch of a version that comes later")
        return self
