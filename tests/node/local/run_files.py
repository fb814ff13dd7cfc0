"""Signed runs, for tests of the data directory and the command line."""

import json
from pathlib import Path

from protocol.core.crypto import Identity
from protocol.run.manifest import Genesis, RunManifest, SignedManifest, sign_manifest
from protocol.run.toml import load_recipe

RECIPE = Path(__file__).parents[3] / "configs" / "runs" / "testnet.toml"


def signed_run(creator: Identity, created_at: int = 1_700_000_000) -> SignedManifest:
    """Return a run whose creator is its trainer and validator."""
    recipe = load_recipe(RECIPE.read_text())
    genesis = Genesis(
        creator=creator.peer_id,
        created_at=created_at,
        policy="00" * 32,
        trainers=(creator.peer_id,),
        validators=(creator.peer_id,),
    )
    return sign_manifest(RunManifest(**dict(recipe), genesis=genesis), creator)


def run_toml(run: SignedManifest) -> str:
    genesis = run.manifest.genesis.model_dump(mode="json", exclude={"files"})
    lines = [f"{key} = {json.dumps(value)}" for key, value in genesis.items()]
    head = f'signature = "{run.signature.hex()}"\n'
    return "\n".join([head, RECIPE.read_text(), "[genesis]", *lines, ""])
