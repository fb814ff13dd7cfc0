"""Run manifest: everything that all nodes of a run must agree on.

It is a ``Recipe`` plus its *genesis*: creator, date, initial weights and keys. The BLAKE3 digest of
the canonical manifest is the run id. Topics, directory keys and signatures carry the run id, so
nodes of different runs cannot mix.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from protocol.core.codec import decode, encode
from protocol.core.crypto import Signer, Verifier, digest, public_key_from_peer_id, signing_bytes
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, Epoch, PeerId, RunId
from protocol.run.outer_bound import check_outer
from protocol.run.recipe import VERSIONS_MAX, Recipe
from protocol.run.sections import LEFT_OUT_WHEN_EMPTY, Count, HexDigest, RecipeModel
from protocol.run.toml import ManifestError, first_error, parsed, validated

EPOCHS_KEPT = 256
"""Cached hashes of epochs."""

MANIFEST_BYTES_MAX = 256 * 1024


class RunFile(RecipeModel):
    """A file that every node of a run has, distributed like weights by the index of its shards."""

    index: HexDigest
    index_bytes: Count
    total_bytes: Annotated[int, Field(ge=1, le=2**40)]


RunFileName = Literal["bundle", "dataset"]
"""The model's small files (``protocol.run.model_files``); the rows of the task, in parquet."""


Total = Annotated[int, Field(ge=0, le=2**53)]
"""Sum over a run: exact in JSON."""


class Predecessor(RecipeModel):
    """The run that a run succeeds, as its newest final page left it: a claim of the creator.

    The first policy of the successor is that of the version that this page makes final. Who holds
    the pages of the predecessor can check it (``protocol.replica.succession``).
    """

    run_id: HexDigest
    page: HexDigest
    """Digest of the newest final page."""
    epoch: Annotated[int, Field(ge=0, le=2**53)]
    """Epoch of this page."""
    head: HexDigest
    """Manifest digest of the version that this page makes final."""
    version: Annotated[int, Field(ge=0, le=VERSIONS_MAX)]
    """Number of this version in the predecessor; in the successor it is version 0."""
    rollouts: Total
    """Certified rollouts of the predecessor, by its final pages."""
    tokens: Total
    """Tokens of these rollouts."""
    is_complete: bool
    """False if the creator's node had not seen all pages: then more was certified."""


class Genesis(RecipeModel):
    """Start of a run: its creator, time, first policy, files, and trusted keys."""

    creator: str
    created_at: Annotated[int, Field(ge=0, le=2**37)]
    """Unix seconds; before the year 10000, since people and chat templates read it as a date."""
    policy: HexDigest
    files: dict[RunFileName, RunFile] = Field(default_factory=dict)
    """Empty for a task over characters."""
    trainers: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    validators: Annotated[tuple[str, ...], Field(min_length=1, max_length=1024)]
    predecessor: Annotated[Predecessor | None, LEFT_OUT_WHEN_EMPTY] = None
    """The run that this one succeeds, if any."""

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

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        if self.environment.in_text and self.environment.runtime is None:
            raise ValueError("environment.runtime: missing; a task in text is scored under one")
        if len(self.genesis.validators) > self.council.seats_max:
            raise ValueError("genesis.validators: more than council.seats_max; it could not vote")
        check_outer(self.grpo)
        return self

    def encoded(self) -> bytes:
        """Return the canonical bytes; their digest is the run id."""
        return encode(self.model_dump(mode="json"))

    @property
    def run_id(self) -> RunId:
        """The digest that identifies the run."""
        return RunId(digest(self.encoded()))

    def epoch_at(self, now: float) -> Epoch:
        """Return the epoch that holds unix time ``now``; 0 before the genesis."""
        return Epoch(max(0, int((now - self.genesis.created_at) // self.epochs.seconds)))

    def epoch_start(self, epoch: int) -> float:
        """Return the unix time at which ``epoch`` begins."""
        return self.genesis.created_at + epoch * self.epochs.seconds

    @property
    def genesis_policy(self) -> Digest:
        """The policy digest of version 0."""
        return Digest(bytes.fromhex(self.genesis.policy))

    def is_trainer(self, peer: PeerId) -> bool:
        """Return whether the genesis lists ``peer`` as a trainer."""
        return peer in self.genesis.trainers

    def leader(self, term: int) -> PeerId:
        """Return the trainer that leads in a term: they take turns in the order of the genesis."""
        trainers = self.genesis.trainers
        return PeerId(trainers[term % len(trainers)])

    def is_validator(self, peer: PeerId) -> bool:
        """Return whether the genesis lists ``peer`` as a validator."""
        return peer in self.genesis.validators

    def is_of_genesis(self, peer: PeerId) -> bool:
        """Return whether the genesis lists ``peer`` as trainer or validator."""
        genesis = self.genesis
        return peer in genesis.trainers or peer in genesis.validators

    def is_exempt(self, peer: PeerId) -> bool:
        """Return whether ``peer`` takes part without admission: the genesis names it."""
        return self.is_of_genesis(peer) or peer == self.genesis.creator

    def admits_worker(self, peer: PeerId) -> bool:
        """Return whether ``peer`` may commit rollouts, given the proof that the rule requires."""
        admission = self.admission
        return admission.rule != "allowlist" or peer in admission.workers or self.is_exempt(peer)


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest with its creator's signature, as nodes exchange and store it."""

    manifest: RunManifest
    signature: bytes

    def encoded(self) -> bytes:
        """Return the canonical bytes, as sent and as pinned in a data directory."""
        return encode({"manifest": self.manifest.encoded(), "signature": self.signature})


def sign_manifest(manifest: RunManifest, creator: Signer) -> SignedManifest:
    """Sign a manifest; raises ``ValueError`` if it names another creator."""
    if creator.peer_id != manifest.genesis.creator:
        raise ValueError("only the creator that the genesis names can sign a manifest")
    return SignedManifest(manifest, creator.sign(_signed_bytes(manifest)))


def decode_signed_manifest(data: bytes, verify: Verifier) -> SignedManifest | Fault:
    """Decode and check a signed manifest that was received or pinned."""
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
    values = parsed(text)
    signature = values.pop("signature", None)
    manifest = validated(RunManifest, values)
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


def decode_manifest(data: bytes) -> RunManifest | Fault:
    """Decode a manifest that a peer sent."""
    values = decode(data, bytes_max=MANIFEST_BYTES_MAX)
    if isinstance(values, Fault):
        return values
    try:
        manifest = RunManifest.model_validate(values)
    except ValidationError as error:
        return Fault(FaultCode.BAD_MANIFEST, first_error(error))
    return manifest if manifest.encoded() == data else Fault(FaultCode.NOT_CANONICAL)


@lru_cache(maxsize=EPOCHS_KEPT)
def epoch_hash(run_id: RunId, epoch: int) -> Digest:
    """Return ``H(run || epoch)``: it dates work, and is predictable."""
    return digest(b"prime-node/beacon" + run_id + epoch.to_bytes(8, "big"))
