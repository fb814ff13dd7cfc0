"""The run manifest: everything that all nodes of a run must agree on.

A *recipe* is what a run creator writes by hand (``configs/runs/*.toml``). A *manifest* is a recipe
plus its *genesis*: who created it, when, with which weights and which keys. The BLAKE3 digest of
the canonical manifest is the run id; topics, directory keys and signatures carry it, so nodes of
different runs cannot mix. Unknown keys and wrong types are errors that name the key.
"""

import tomllib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protocol.codec import decode, encode
from protocol.crypto import Signer, Verifier, digest, public_key_from_peer_id, signing_bytes
from protocol.faults import Fault, FaultCode
from protocol.messages import BATCH_MAX, VERDICTS_MAX
from protocol.types import Digest, Epoch, PeerId, RunId

MANIFEST_BYTES_MAX = 256 * 1024

VERSIONS_MAX = 4096
"""Steps of a run: a newcomer must hold all its manifests before it can take the first one."""

_Model = TypeVar("_Model", bound=BaseModel)

Count = Annotated[int, Field(ge=1, le=2**31)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ManifestError(ValueError):
    """A manifest that cannot be used; the message is one line and names the key."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSection(_Section):
    """The model: a Hugging Face architecture with its sizes; the weights are the genesis policy."""

    name: str = Field(max_length=128)
    architecture: Literal["qwen2"]
    config: dict[str, int | float | str | bool]
    dtype: Literal["fp32", "bf16"]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("vocab_size", "eos_token_id"):
            if type(self.config.get(key)) is not int:
                raise ValueError(f"config.{key} must be an integer")
        return self

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are; ids are below it."""
        return int(self.config["vocab_size"])

    @property
    def end_token(self) -> int:
        """The token that ends a sequence."""
        return int(self.config["eos_token_id"])


class EnvironmentSection(_Section):
    """The task."""

    name: Name


class SamplingSection(_Section):
    """How a rollout is drawn; ``length_targets`` empty means no length reward."""

    temperature: Annotated[float, Field(gt=0, le=10)]
    group_size: Count
    prompts_per_rollout: Count
    tokens_max: Count
    length_targets: tuple[Count, ...] = ()
    length_penalty: Share = 0.0


class GrpoSection(_Section):
    """Asynchronous GRPO with two-sided clipping, and when a step is taken."""

    learning_rate: Annotated[float, Field(gt=0, le=1)]
    epsilon: Share
    delta: Annotated[float, Field(gt=1, le=1000)]
    gradient_clip: Annotated[float, Field(gt=0, le=1000)]
    weight_decay: Share
    adam_betas: tuple[Share, Share]
    entropy_coefficient: Share = 0.0
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 0
    updates_per_version: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimiser updates that a batch is learned in, each from a part of its groups."""
    rollouts_per_step: Annotated[int, Field(ge=1, le=BATCH_MAX)]
    refill_max: Annotated[int, Field(ge=0, le=BATCH_MAX)] = 0
    """Rollouts that a step takes beyond ``rollouts_per_step``, at most, in place of groups whose
    rewards are all equal: they teach nothing and would make the batch smaller."""
    rollouts_ahead: Count
    """Batches that may wait, certified or in flight, before workers pause (back-pressure)."""
    async_level: Annotated[int, Field(ge=0, le=64)]
    """Age in versions of a policy whose rollouts may still be used."""
    steps: Annotated[int, Field(ge=1, le=VERSIONS_MAX)]

    @property
    def batch_max(self) -> int:
        """The most rollouts that a step takes."""
        return self.rollouts_per_step + self.refill_max

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_max > BATCH_MAX:
            raise ValueError(f"rollouts_per_step and refill_max must not exceed {BATCH_MAX}")
        if self.batch_max > self.rollouts_per_step * self.rollouts_ahead:
            # Or workers would pause before the step that waits for them has what it may wait for.
            raise ValueError("refill_max must leave a batch within rollouts_ahead of them")
        return self


class ToplocSection(_Section):
    """The proof format and its thresholds, and the checks that lean on the same prefill."""

    precision: Literal["fp32", "bf16"]
    chunk_tokens: Annotated[int, Field(ge=1, le=1024)]
    top_k: Annotated[int, Field(ge=1, le=1024)]
    exponent_mismatches_max: Annotated[int, Field(ge=0, le=1024)]
    mantissa_error_mean_max: Annotated[float, Field(ge=0, le=2**23)]
    mantissa_error_median_max: Annotated[float, Field(ge=0, le=2**23)]
    logprob_error_max: Annotated[float, Field(gt=0, le=10)]
    sampling_gap_max: Annotated[float, Field(gt=0, le=10)]
    end_probability_min: Share
    audit_share: Share = 1.0
    """Of the sequences of a rollout, how many the prefill covers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.audit_share < 1:
            # A worker draws commits until the lies of one are where nobody looks: with a quarter
            # audited it took seconds to hide 12 false sequences among 16.
            raise ValueError("audit_share must be 1 while everyone can predict the beacon")
        return self


class CommitteeSection(_Section):
    """Who checks: sizes of the first and of the larger committee, and their deadlines."""

    size: Count
    escalated_size: Annotated[int, Field(ge=1, le=VERDICTS_MAX)]
    roster_min: Count
    """No committee is drawn before this many validators are live."""
    escalate_after_epochs: Count
    expire_after_epochs: Count
    """A commit without an outcome by then has expired."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.escalated_size < self.size:
            raise ValueError("escalated_size must not be smaller than size")
        if self.expire_after_epochs <= self.escalate_after_epochs:
            raise ValueError("expire_after_epochs must exceed escalate_after_epochs")
        return self


class EpochSection(_Section):
    """Epoch length, and for how long a member's record keeps it on the roster."""

    seconds: Seconds
    record_epochs: Count
    refresh_epochs: Count


class ShardcastSection(_Section):
    """How a checkpoint is cut and spread."""

    shard_bytes: Annotated[int, Field(ge=4096, le=2**32)]
    chunk_bytes: Annotated[int, Field(ge=1024, le=2**22)]
    stripes: Annotated[int, Field(ge=1, le=64)]
    fanout: Annotated[int, Field(ge=2, le=64)]
    versions_kept: Annotated[int, Field(ge=2, le=1024)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.chunk_bytes > self.shard_bytes:
            raise ValueError("chunk_bytes must not exceed shard_bytes")
        return self


class AdmissionSection(_Section):
    """Who may work; validators and trainers are always the keys that the genesis names."""

    rule: Literal["open", "allowlist"]
    workers: tuple[str, ...] = ()


class CreditSection(_Section):
    """Whether a rejected rollout ends its worker's standing."""

    slash_on_reject: bool


class Recipe(_Section):
    """What a run creator decides; see ``configs/runs``."""

    name: Name
    model: ModelSection
    environment: EnvironmentSection
    sampling: SamplingSection
    grpo: GrpoSection
    toploc: ToplocSection
    committee: CommitteeSection
    epochs: EpochSection
    shardcast: ShardcastSection
    admission: AdmissionSection
    credit: CreditSection

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shardcast.versions_kept <= self.grpo.async_level:
            raise ValueError("shardcast.versions_kept must exceed grpo.async_level")
        return self


class Genesis(_Section):
    """How a run began: its creator, time, first policy, and the keys it trusts."""

    creator: str
    created_at: Annotated[int, Field(ge=0, le=2**40)]
    policy: HexDigest
    trainers: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    validators: Annotated[tuple[str, ...], Field(min_length=1, max_length=1024)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in (self.creator, *self.trainers, *self.validators):
            if public_key_from_peer_id(key) is None:
                raise ValueError(f"{key!r} is not an Ed25519 peer id")
        if len(set(self.validators)) != len(self.validators):
            raise ValueError("validators names a key twice")
        return self


class RunManifest(Recipe):
    """A recipe with its genesis: one run."""

    genesis: Genesis

    def encoded(self) -> bytes:
        """Return the canonical bytes, whose digest is the run id."""
        return encode(self.model_dump(mode="json"))

    @property
    def run_id(self) -> RunId:
        """The digest that names the run."""
        return RunId(digest(self.encoded()))

    def epoch_at(self, now: float) -> Epoch:
        """Return the epoch that holds unix time ``now``; 0 before the genesis."""
        return Epoch(max(0, int((now - self.genesis.created_at) // self.epochs.seconds)))

    def epoch_start(self, epoch: int) -> float:
        """Return the unix time at which ``epoch`` begins."""
        return self.genesis.created_at + epoch * self.epochs.seconds

    @property
    def genesis_policy(self) -> Digest:
        """The digest of version 0."""
        return Digest(bytes.fromhex(self.genesis.policy))

    def is_trainer(self, peer: PeerId) -> bool:
        """Tell whether the genesis lists ``peer`` as a trainer."""
        return peer in self.genesis.trainers

    def term_of(self, trainer: PeerId, least: int) -> int:
        """Return the first term from ``least`` on that is this trainer's.

        The trainers have them in turn, so two that take over at once, cut off from each other, do
        not claim the same one.
        """
        trainers = self.genesis.trainers
        return least + (trainers.index(trainer) - least) % len(trainers)

    def is_validator(self, peer: PeerId) -> bool:
        """Tell whether the genesis lists ``peer`` as a validator."""
        return peer in self.genesis.validators

    def admits_worker(self, peer: PeerId) -> bool:
        """Tell whether ``peer`` may commit rollouts under the admission rule."""
        return self.admission.rule == "open" or peer in self.admission.workers


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest with its creator's signature: what nodes give to each other and keep."""

    manifest: RunManifest
    signature: bytes

    def encoded(self) -> bytes:
        """Return the canonical bytes that travel and that a data directory pins."""
        return encode({"manifest": self.manifest.encoded(), "signature": self.signature})


def sign_manifest(manifest: RunManifest, creator: Signer) -> SignedManifest:
    """Sign a manifest; raises ``ValueError`` when ``creator`` is not the one it names."""
    if creator.peer_id != manifest.genesis.creator:
        raise ValueError("only the creator that the genesis names can sign a manifest")
    return SignedManifest(manifest, creator.sign(_signed_bytes(manifest)))


def decode_signed_manifest(data: bytes, verify: Verifier) -> SignedManifest | Fault:
    """Read and check a signed manifest that a peer sent or that was pinned."""
    fields = decode(data, bytes_max=MANIFEST_BYTES_MAX)
    match fields:
        case Fault():
            return fields
        case {"manifest": bytes(body), "signature": bytes(signature)} if len(fields) == 2:
            manifest = decode_manifest(body)
        case _:
            return Fault(FaultCode.BAD_MANIFEST, "not a signed manifest")
    if isinstance(manifest, Fault):
        return manifest
    if not verify(PeerId(manifest.genesis.creator), _signed_bytes(manifest), signature):
        return Fault(FaultCode.BAD_SIGNATURE, "the creator did not sign this manifest")
    return SignedManifest(manifest, signature)


def load_signed_manifest(text: str, verify: Verifier) -> SignedManifest:
    """Parse the TOML of a manifest with its ``signature`` key; raises ``ManifestError``."""
    values = _parsed(text)
    signature = values.pop("signature", None)
    manifest = _validated(RunManifest, values)
    if not isinstance(signature, str):
        raise ManifestError("signature: missing; a run manifest is signed by its creator")
    try:
        signed = SignedManifest(manifest, bytes.fromhex(signature))
    except ValueError:
        raise ManifestError("signature: not hexadecimal") from None
    creator = PeerId(manifest.genesis.creator)
    if not verify(creator, _signed_bytes(manifest), signed.signature):
        raise ManifestError(f"signature: not made by the creator {creator} over this manifest")
    return signed


def _signed_bytes(manifest: RunManifest) -> bytes:
    return signing_bytes("run-manifest", manifest.run_id, manifest.encoded())


def load_recipe(text: str) -> Recipe:
    """Parse the TOML of a recipe; raises ``ManifestError`` naming the first wrong key."""
    return _validated(Recipe, _parsed(text))


def decode_manifest(data: bytes) -> RunManifest | Fault:
    """Read a manifest that a peer sent."""
    values = decode(data, bytes_max=MANIFEST_BYTES_MAX)
    if isinstance(values, Fault):
        return values
    try:
        manifest = RunManifest.model_validate(values)
    except ValidationError as error:
        return Fault(FaultCode.BAD_MANIFEST, _first_error(error))
    return manifest if manifest.encoded() == data else Fault(FaultCode.NOT_CANONICAL)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"not TOML: {error}") from None


def _validated(model: type[_Model], values: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(_tuples(values))
    except ValidationError as error:
        raise ManifestError(_first_error(error)) from None


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _first_error(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # A misspelt required key is missing and unknown: what was written says more to its author.
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    key = ".".join(str(part) for part in first["loc"]) or "manifest"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}"
