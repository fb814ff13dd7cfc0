"""How a testnet's run begins: keys, a first policy by a short cold start, a signed manifest."""

from pathlib import Path
from typing import Any

import tomlkit

from node.founding.found import create_member, found, give, manifest_toml
from node.local.datadir import DataDir, load_or_create_identity, write_atomically
from node.testnet.plan import Layout, NodePlan, Options
from protocol.manifest import SignedManifest
from protocol.recipe import Recipe, load_recipe
from protocol.types import Role

RECIPE = "configs/runs/testnet.toml"

COLD_START_ACCURACY = 0.33
"""Sampled accuracy at which reinforcement learning takes over: groups hold both right and wrong
answers, and there is much left to learn."""


def recipe_for(options: Options) -> Recipe:
    """Return the testnet's recipe with what the options change in it."""
    recipe = load_recipe(recipe_path().read_text())
    changes: dict[str, Any] = {"grpo": recipe.grpo.model_copy(update={"steps": options.steps})}
    if options.environment:
        changes["environment"] = recipe.environment.model_copy(update={"name": options.environment})
    return recipe.model_copy(update=changes)


def recipe_path() -> Path:
    """Return the recipe in the checkout, or the one that was installed with the package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent / RECIPE
    return checkout if checkout.exists() else package / RECIPE


def create_members(options: Options, layout: Layout) -> list[NodePlan]:
    """Make a data directory and a key for every node."""
    plans = []
    for name, role, behaviour in options.members():
        directory = layout.node(name)
        plans.append(NodePlan(name, role, behaviour, directory, create_member(directory)))
    return plans


def cold_start_policy(recipe: Recipe, seed: int, path: Path) -> str:
    """Learn the first policy; return its digest in hexadecimal. Runs in a child: it needs torch."""
    from roles.engines.cold_start import cold_start  # noqa: PLC0415 - see above
    from roles.environments.base import environment, supervised  # noqa: PLC0415 - see above

    path.parent.mkdir(parents=True, exist_ok=True)
    made = cold_start(
        supervised(environment(recipe.environment.name)),
        recipe.model,
        seed,
        path,
        target_accuracy=COLD_START_ACCURACY,
        length_targets=recipe.sampling.length_targets,
    )
    return made.digest.hex()


def found_run(recipe: Recipe, policy: str, plans: list[NodePlan], layout: Layout) -> SignedManifest:
    """Sign and write the manifest, and give the first policy, of this digest, to the trainers."""
    creator = load_or_create_identity(layout.directory / "creator.key")
    trainers = [plan for plan in plans if plan.role is Role.TRAINER]
    validators = [plan.peer_id for plan in plans if plan.role is Role.VALIDATOR]
    signed = found(recipe, policy, creator, [plan.peer_id for plan in trainers], validators)
    write_atomically(layout.recipe, tomlkit.dumps(recipe.model_dump()).encode())
    write_atomically(layout.manifest, manifest_toml(signed).encode())
    for plan in trainers:
        give(layout.genesis_policy, DataDir(plan.directory).genesis)
    return signed
