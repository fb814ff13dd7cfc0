"""Schemas of all signed messages, one frozen model each.

A message has no effect before ``open_envelope`` has checked its size, canonical form, fields and
signature for this run. The id of a signed message (``Signed.digest``) covers signer, kind, run and
payload but not the signature: a second signature does not make a second message.
"""

import operator
from typing import Annotated, Self

from pydantic import (
    Field,
    model_validator,
)

from protocol.core.types import RANKS_MAX, Role
from protocol.core.vrf import PROOF_BYTES
from protocol.messages.envelope import Message
from protocol.messages.fields import (
    BATCH_MAX,
    COUNCIL_MAX,
    OMITTED_MAX,
    Billionths,
    DigestBytes,
    EpochOrNone,
    Millionths,
    NodeName,
    OptionalDigest,
    RateClass,
    RevealProof,
    Seats,
    ShortText,
    SignatureBytes,
    UInt,
)
from protocol.messages.rounds import TrainingRound

VERDICT_BYTES_MAX = 1024
"""An honest envelope has at most about 950 bytes: 29 numbers and 200 characters of detail."""

SEAL_BYTES_MAX = 512
"""An envelope has about 330 bytes."""

STEP_REPORT_BYTES_MAX = 512
"""An envelope has about 280 bytes."""

WITNESSES = 8
"""Witness values of a verdict that measured something. They cost eight rows of logits."""

ACCEPTED = "accepted"

UNMEASURED = frozenset({"format", "termination", "reward-history"})
"""Reasons of a rejection that need no prefill, so such a verdict has no witness values."""

EVIDENCE_BYTES_MAX = 4096
"""Two verdicts and a commit of about 500 bytes."""

VERDICTS_MAX = 15
"""Number of the largest verdicts that fit into one certificate, so also the largest committee."""

OBJECTION_BYTES_MAX = 512
"""An envelope has about 260 bytes."""

REEXAMINERS_MAX = 27
"""Maximum seats that re-examine a commit. If a quarter of 200 seats is dishonest, two thirds of 27
drawn ones are dishonest once in a million draws; if a third is, once in 8,000."""

ENCODINGS_MAX = 4
"""Maximum encodings of one version: byte planes, and patches of the versions most nodes hold."""

ADMISSION_BYTES_MAX = 512
"""Maximum admission proof in a record; an invite is the longest, about 300 bytes."""

OBSERVATIONS_MAX = 32
"""Maximum reports about other members in one record, 1.2 KB: four times an even share."""

REVEALERS_MAX = 8
"""Maximum members drawn to reveal in an epoch."""

LISTED_MAX = 200
"""Maximum new commits, and maximum decided ones, in a page; together they take 14.5 KB of 16."""

PROTOCOL_VERSION = 2

SYSTEM_PORTS = 1024
"""System ports (RFC 6335) are below; a node never connects to one that a record names."""


class Hardware(Message):
    """Self-reported hardware; advertised, never trusted for safety."""

    kind = "hardware"
    gpu: ShortText = ""
    gpus: UInt = 0
    gpu_memory_bytes: UInt = 0
    memory_bytes: UInt = 0
    cores: UInt = 0


class NodeRecord(Message):
    """A member's statement about itself; the newest ``sequence`` counts until it expires."""

    kind = "node-record"
    sequence: UInt
    """Unix milliseconds of issue; strictly increasing per member."""
    joined_at: UInt
    """Claimed start of the current uninterrupted membership, in unix milliseconds."""
    name: Annotated[NodeName, Field(exclude_if=operator.not_)] = ""
    """Name chosen by its operator, neither unique nor verified; left out when it is empty."""
    roles: Annotated[tuple[str, ...], Field(max_length=len(Role))]
    addresses: Annotated[tuple[ShortText, ...], Field(max_length=8)]
    hardware: Hardware
    upload_bytes_per_second: UInt = 0
    """Self-set upload limit; 0: none."""
    reachable: bool
    """Self-reported reachability; false if dial-backs failed."""
    witnessed: Annotated[tuple[DigestBytes, ...], Field(max_length=OBSERVATIONS_MAX)] = ()
    """Public keys of the members that this one dialled back."""
    upload_classes: Annotated[tuple[RateClass, ...], Field(max_length=OBSERVATIONS_MAX)] = ()
    """Upload rate class of each of them, 0 if it did not respond."""
    http_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of its HTTP weight server, on the host of its connection; 0: none. Without a host,
    because a record could name a third party's."""
    software: ShortText
    scoring: OptionalDigest = b""
    """Digest of the node's scoring runtime; empty if it does not score."""
    protocol_version: UInt
    policy_version: Annotated[int, Field(ge=-1, le=2**53)]
    """Newest policy held, -1 before the first."""
    checkpoint: OptionalDigest = b""
    """Manifest digest of the newest accepted version; empty before the first."""
    admission: Annotated[bytes, Field(max_length=ADMISSION_BYTES_MAX)] = b""
    """Proof that admits the key to the run (``protocol.membership.proof_of_work``); empty if none
    is required."""
    leaving: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.witnessed) != len(self.upload_classes):
            raise ValueError("witnessed and upload_classes differ in length")
        if len(set(self.witnessed)) != len(self.witnessed):
            raise ValueError("witnessed names a key twice")
        return self

    @property
    def issued_at(self) -> float:
        """Unix seconds of issue."""
        return self.sequence / 1000


class Invite(Message):
    """An inviter's signed admission of a key; its envelope is the proof in that key's records.

    Two invites with one number for different keys prove equivocation; both become invalid.
    """

    kind = "invite"
    envelope_bytes_max = ADMISSION_BYTES_MAX
    key: DigestBytes
    """Public key of the invited node."""
    number: UInt
    """Serial number among this inviter's invites, below its quota."""
    epoch: UInt
    """Epoch of issue."""
    until: UInt
    """Last epoch in which it is valid."""


class RolloutCommit(Message):
    """A worker's commitment to one finished rollout: a group of sequences per prompt."""

    kind = "rollout-commit"
    epoch: UInt
    version: UInt
    checkpoint: DigestBytes
    """Manifest digest of ``version``: it determines the weights."""
    slot: UInt
    """Number of a training slot of this worker, or of its evaluation slot of this checkpoint."""
    evaluation: bool = False
    """True for a rollout on held-out problems, which evaluates ``version``."""
    body: DigestBytes
    body_bytes: UInt
    sequences: UInt
    tokens: UInt


class Verdict(Message):
    """A validator's result for one commit; ``reason`` is ``accepted`` or the first failed check."""

    kind = "verdict"
    envelope_bytes_max = VERDICT_BYTES_MAX
    commit: DigestBytes
    page: DigestBytes
    """The page that drew the committee and the witness points."""
    nonce: DigestBytes
    """Random bytes that hide the verdict in its seal."""
    accept: bool
    reason: ShortText
    detail: ShortText = ""
    chunks: UInt = 0
    """Number of compared proof chunks; 0 if nothing was measured."""
    means: Annotated[tuple[Billionths, ...], Field(max_length=16)] = ()
    """Means of ``protocol.rollout.statistics.STATISTICS``, of clipped values, in order."""
    extremes: Annotated[tuple[Billionths, ...], Field(max_length=16)] = ()
    """The worst single values, as ``protocol.rollout.statistics.Extremes``."""
    witness: Annotated[tuple[Billionths, ...], Field(max_length=WITNESSES)] = ()
    """Log-probabilities at the witness points (``protocol.rollout.witness``); empty if nothing was
    measured."""
    replays: Annotated[tuple[UInt, ...], Field(max_length=WITNESSES)] = ()
    """Tokens that the noise of the witness points selects."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.accept is not (self.reason == ACCEPTED):
            raise ValueError("accept and reason contradict each other")
        count = 0 if self.reason in UNMEASURED else WITNESSES
        if not len(self.witness) == len(self.replays) == count:
            raise ValueError(f"a verdict for {self.reason!r} has {count} witness values")
        return self


class VerdictSeal(Message):
    """A validator's commitment to its verdict, sent before it sees another one.

    ``protocol.consensus.seals`` defines ``seal``.
    """

    kind = "verdict-seal"
    envelope_bytes_max = SEAL_BYTES_MAX
    commit: DigestBytes
    page: DigestBytes
    """The page of the verdict."""
    seal: DigestBytes


class Certificate(Message):
    """A committee's outcome with the signed verdicts behind it; every node can verify it."""

    kind = "certificate"
    commit: DigestBytes
    page: DigestBytes
    """The page that drew the committee."""
    escalated: bool
    accepted: bool
    verdicts: Annotated[tuple[bytes, ...], Field(min_length=1, max_length=VERDICTS_MAX)]
    dissents: Annotated[tuple[bytes, ...], Field(max_length=VERDICTS_MAX - 1)] = ()
    """Verdicts of other members of the larger committee that contradict these."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.verdicts) + len(self.dissents) > VERDICTS_MAX:
            raise ValueError("more verdicts than members of a committee")
        return self


class Evidence(Message):
    """Envelopes of two contradicting statements of one validator; any node may publish it.

    A statement is a verdict or the seal of one.
    """

    kind = "evidence"
    envelope_bytes_max = EVIDENCE_BYTES_MAX
    commit: bytes
    first: bytes
    second: bytes


class Objection(Message):
    """A drawn member's statement that the final outcome of a commit is wrong.

    The statements of all members have the same bytes, so an ``Overturn`` holds signatures only.
    """

    kind = "objection"
    envelope_bytes_max = OBJECTION_BYTES_MAX
    commit: DigestBytes
    page: DigestBytes
    """The page that drew the members (``protocol.consensus.reexamination``)."""
    reason: ShortText
    """First failed check of an accepted commit, or ``accepted`` for a rejected one."""


class Overturn(Message):
    """Objections of enough drawn members; every node can verify it."""

    kind = "overturn"
    commit: DigestBytes
    page: DigestBytes
    reason: ShortText
    members: UInt
    """The members that object: one bit for each drawn member, the one that ranks first lowest."""
    signatures: Annotated[
        tuple[SignatureBytes, ...], Field(min_length=1, max_length=REEXAMINERS_MAX)
    ]
    """Signatures of their ``Objection``, in the same order."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.members.bit_count() != len(self.signatures):
            raise ValueError("members and signatures differ in number")
        return self


class Page(Message):
    """The council's decisions of one epoch (``protocol.consensus.pages``).

    ``seed`` and ``final_epoch`` follow from its ancestors. They stand here so that a page and its
    votes can be checked without its ancestors.
    """

    kind = "page"
    epoch: UInt
    council: OptionalDigest
    """Page that seated the council; empty for the genesis."""
    parent: OptionalDigest
    """Page before it; the seating page for the first page of a council."""
    seed: DigestBytes
    """Beacon of the parent."""
    final_epoch: EpochOrNone
    """Epoch of the newest page that its ancestors show final; -1 for none."""
    term: UInt = 0
    """Term of the trainer that leads after this page (``RunManifest.leader``)."""
    head: OptionalDigest = b""
    """Manifest digest of the newest version that this page makes final; empty for none."""
    reveals: Annotated[tuple[RevealProof, ...], Field(max_length=REVEALERS_MAX)]
    """Proofs of the drawn members in their order; empty where a member revealed nothing."""
    joined: Annotated[tuple[DigestBytes, ...], Field(max_length=COUNCIL_MAX)] = ()
    """Public keys that join the council after this page."""
    removed: Annotated[tuple[DigestBytes, ...], Field(max_length=COUNCIL_MAX)] = ()
    """Public keys that leave it."""
    drawn: Annotated[tuple[DigestBytes, ...], Field(max_length=COUNCIL_MAX)] = ()
    """Public keys of a council drawn for a new era; empty if none is."""
    seats: Annotated[tuple[Seats, ...], Field(max_length=COUNCIL_MAX)] = ()
    """Seats of each of them."""
    commits: Annotated[tuple[DigestBytes, ...], Field(max_length=LISTED_MAX)] = ()
    """New commits: the next page that draws committees draws theirs, with a beacon that nobody can
    know yet."""
    certified: Annotated[tuple[DigestBytes, ...], Field(max_length=LISTED_MAX)] = ()
    """Commits whose acceptance this page makes final."""
    rejected: Annotated[tuple[DigestBytes, ...], Field(max_length=LISTED_MAX)] = ()
    """Commits whose rejection this page makes final."""
    checkers: Annotated[tuple[UInt, ...], Field(max_length=LISTED_MAX)] = ()
    """Members whose verdicts decided each certified and then each rejected commit: one bit for
    each place in its larger committee, the first place lowest."""
    overturned: Annotated[tuple[DigestBytes, ...], Field(max_length=LISTED_MAX)] = ()
    """Commits whose final outcome a re-examination has overturned."""
    work: OptionalDigest = b""
    """Digest of the receipts of these commits and of the versions that become final
    (``protocol.ledger.receipts``); empty for none."""
    ledger: OptionalDigest = b""
    """Merkle root of all accounts after the page of ``final_epoch`` (``protocol.ledger.accounts``);
    empty on a page that follows a change of the council."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        decided = len(self.certified) + len(self.rejected)
        if len(self.checkers) != decided:
            raise ValueError("checkers and decided commits differ in number")
        if self.overturned and decided + len(self.overturned) > LISTED_MAX:
            raise ValueError("more decided and overturned commits than a page lists")
        return self

    @property
    def decided(self) -> tuple[bytes, ...]:
        """The commits that this page makes final, in the order of ``checkers``."""
        return self.certified + self.rejected

    @property
    def lists_work(self) -> bool:
        """True if the page lists commits or decides anything but the council."""
        return bool(self.commits or self.checkers or self.overturned or self.work)

    @property
    def changes_council(self) -> bool:
        """True if another council follows this page."""
        return bool(self.joined or self.removed or self.drawn)


class Reveal(Message):
    """A drawn member's verifiable random output for the child of ``parent`` in an epoch."""

    kind = "reveal"
    epoch: UInt
    parent: OptionalDigest
    proof: Annotated[bytes, Field(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class PageVote(Message):
    """A council member's only vote in an epoch."""

    kind = "page-vote"
    epoch: UInt
    council: OptionalDigest
    page: DigestBytes
    parent: OptionalDigest
    """Parent of the page: after a restart its author votes for no child of a shorter chain."""


class Encoding(Message):
    """A version's file in another transfer format (``protocol.shardcast.encodings``)."""

    kind = "encoding"
    base_version: Annotated[int, Field(ge=-1, le=2**53)]
    """Base version of a patch, -1 for none."""
    base: OptionalDigest
    """Policy digest of that version; empty for none."""
    index: DigestBytes
    index_bytes: UInt
    total_bytes: UInt

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.base_version < 0) == bool(self.base):
            raise ValueError("base and base_version must be set together")
        return self


class CheckpointManifest(Message):
    """A published policy; ``batch`` lists the commits it learned from."""

    kind = "checkpoint-manifest"
    version: UInt
    term: UInt
    parent: OptionalDigest
    """Digest of the signed manifest of version - 1; empty for version 0."""
    policy: DigestBytes
    index: DigestBytes
    """Index of the unencoded weights file."""
    index_bytes: UInt
    total_bytes: UInt
    encodings: Annotated[tuple[Encoding, ...], Field(max_length=ENCODINGS_MAX)] = ()
    state: OptionalDigest = b""
    """Index of the optimiser state, for the next trainer; empty if none is published."""
    state_index_bytes: UInt = 0
    state_bytes: UInt = 0
    batch: Annotated[tuple[DigestBytes, ...], Field(max_length=BATCH_MAX)] = ()
    """Commits that this version learned from."""
    page: OptionalDigest = b""
    """Newest final page when its trainer drew the batch; empty for none."""
    omitted: Annotated[tuple[DigestBytes, ...], Field(max_length=OMITTED_MAX)] = ()
    """Final commits that the lot drew for the batch and that its trainer left out, in the order of
    the lot (``protocol.replica.batch_rule``)."""
    reloaded: bool = False
    """True if its trainer began this step from the rounded weights of version - 1, with the moments
    of another version or none."""
    moments: EpochOrNone = -1
    """Version of the published state with these moments; -1 for none."""
    round: Annotated[TrainingRound | None, Field(exclude_if=operator.not_)] = None
    """The round of several trainers, in a run that has them; left out otherwise."""
    ranks: Annotated[int, Field(ge=1, le=RANKS_MAX)] = 1
    """Processes that computed the step: sums of other numbers of them differ by rounding."""
    reward_mean: Millionths = 0
    """Mean verified reward of the batch, millionths."""
    created_at: UInt
    """Unix milliseconds."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(encoding.base_version >= self.version for encoding in self.encodings):
            raise ValueError("a patch must have an older base version")
        if self.moments >= 0 and not (self.reloaded and self.moments < self.version):
            raise ValueError("moments must be of an older version, of a reloaded step")
        return self


class StepReport(Message):
    """Policy that another trainer computed from the parent and the batch of a version."""

    kind = "step-report"
    envelope_bytes_max = STEP_REPORT_BYTES_MAX
    manifest: DigestBytes
    """Digest of the version's signed manifest."""
    policy: DigestBytes
    """Policy digest of the weights that the reporter computed."""
