"""Signed manifest of a new run, and data directories for the nodes that it names."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomlkit

from node.local.datadir import load_or_create_identity, open_data_dir
from protocol.core.crypto import Identity
from protocol.core.types import PeerId
from protocol.run.manifest import (
    Genesis,
    Predecessor,
    RunFile,
    RunFileName,
    RunManifest,
    SignedManifest,
    sign_manifest,
)
from protocol.run.recipe import Recipe
from protocol.run.toml import ManifestError


def draft(
    recipe: Recipe, policy: str, files: Mapping[RunFileName, RunFile], created_at: int
) -> RunManifest:
    """Return a preliminary manifest, without members, for computations before a run exists."""
    nobody = Identity(os.urandom(32)).peer_id
    genesis = Genesis(
        creator=nobody,
        created_at=created_at,
        policy=policy,
        files=dict(files),
        trainers=(nobody,),
        validators=(nobody,),
    )
    return RunManifest(**{**dict(recipe), "genesis": genesis})


def found(
    recipe: Recipe,
    policy: str,
    files: Mapping[RunFileName, RunFile],
    creator: Identity,
    trainers: Sequence[PeerId],
    validators: Sequence[PeerId],
    created_at: int | None = None,
    predecessor: Predecessor | None = None,
) -> SignedManifest:
    """Return the manifest of a new run with the first policy of a digest (hexadecimal).

    Policies in bf16 are dithered unless the recipe disables that. ``files`` are the files of every
    node; ``created_at`` is in unix seconds, by default now.

    Raises ``ManifestError`` for too few validators to certify rollouts, and ``ValueError`` for
    invalid keys of members.
    """
    needed = recipe.committee.size
    if len(validators) < needed:
        raise ManifestError(
            f"{len(validators)} validators cannot certify anything: "
            f"committee.size asks for {needed}"
        )
    genesis = Genesis(
        creator=creator.peer_id,
        created_at=int(time.time()) if created_at is None else created_at,
        policy=policy,
        files=dict(files),
        trainers=tuple(trainers),
        validators=tuple(validators),
        predecessor=predecessor,
    )
    model = recipe.model
    if model.dtype == "bf16" and model.rounding is None:
        model = model.model_copy(update={"rounding": "dither"})
    values = {**dict(recipe), "model": model, "genesis": genesis}
    return sign_manifest(RunManifest(**values), creator)


def manifest_toml(signed: SignedManifest) -> str:
    """Return the TOML of a manifest; ``load_signed_manifest`` reads it back with its run id."""
    return tomlkit.dumps({"signature": signed.signature.hex(), **signed.manifest.model_dump()})


def create_member(root: Path) -> PeerId:
    """Create a data directory with a key; return its peer id."""
    return load_or_create_identity(open_data_dir(root).identity).peer_id


def give(source: Path, target: Path) -> None:
    """Link ``target`` to the file ``source``; copy it only where the disk cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
