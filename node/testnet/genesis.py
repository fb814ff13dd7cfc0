"""Genesis of a testnet's run: keys, a first policy by a short cold start, a signed manifest."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import tomlkit

from node.founding.found import create_member, found, give, manifest_toml
from node.founding.model import import_model
from node.founding.recipes import read_recipe
from node.founding.task import give_task, import_task, pin_task
from node.local.config import runtime_directories
from node.local.datadir import DataDir, load_or_create_identity, write_atomically
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run
from node.local.system import ThreadBackground
from node.testnet.plan import STEPS, NodePlan, Options, SwarmLayout
from protocol.core.types import Role
from protocol.messages import ROUND_TRAINERS_MAX
from protocol.run.manifest import RunFile, RunFileName, SignedManifest
from protocol.run.outer_bound import check_outer
from protocol.run.recipe import (
    VERSIONS_MAX,
    EnvironmentSection,
    GrpoSection,
    ModelSection,
    Recipe,
)
from protocol.run.sections import OuterSection
from protocol.run.toml import validated

COLD_START_ACCURACY = 0.33
"""Sampled accuracy at which reinforcement learning takes over: groups then hold both right and
wrong answers."""


def recipe_for(options: Options) -> Recipe:
    """Return the recipe of the testnet or of its created run, changed by the options.

    Raises ``NodeError`` for a missing or unreadable recipe.
    """
    if options.run is not None:
        recipe: Recipe = load_run(options.run / "run.toml").manifest
        usual = None
    else:
        recipe = read_recipe(options.recipe)
        usual = VERSIONS_MAX if math.isinf(options.minutes) else STEPS.get(options.recipe)
    steps = options.steps or usual or recipe.grpo.steps
    grpo = recipe.grpo.model_copy(update={"steps": steps})
    if options.diloco:
        grpo = _with_rounds(grpo, min(options.trainers, ROUND_TRAINERS_MAX))
    changes: dict[str, Any] = {"grpo": grpo}
    if options.environment:
        changes["environment"] = recipe.environment.model_copy(update={"name": options.environment})
    return recipe.model_copy(update=changes)


def _with_rounds(grpo: GrpoSection, trainers: int) -> GrpoSection:
    """Return a section whose trainers train at the same time; raises ``NodeError``."""
    outer = OuterSection(trainers=trainers)
    try:
        changed = validated(GrpoSection, grpo.model_dump() | {"outer": outer.model_dump()})
        check_outer(changed)
    except ValueError as error:
        raise NodeError(f"--diloco: {error}", ExitCode.CONFIG) from None
    return changed


def require_task(recipe: Recipe) -> None:
    """Raise ``NodeError`` unless nodes of this machine can run the recipe's task.

    The check takes half a second for a task in text; without it every node would fail at its start.
    """
    if not recipe.environment.in_text:
        return
    from roles.environments.jail import NoJailError  # noqa: PLC0415 - as above
    from roles.environments.registry import text_task  # noqa: PLC0415 - for a task in text alone
    from roles.environments.usable_rows import PromptRoom  # noqa: PLC0415 - as above

    background = ThreadBackground()
    try:
        section, room = pin_task(recipe).environment, PromptRoom.of(recipe)
        runtimes = runtime_directories(os.environ)
        text_task(section, Path(), _no_tokenizer, background, room, runtimes)
    except NoJailError as error:
        raise NodeError(
            f"{error}; install bubblewrap (apt-get install bubblewrap) and allow user namespaces",
            ExitCode.CONFIG,
        ) from None
    except ValueError as error:
        raise NodeError(
            f"{error}; install the extra envs: pip install '.[envs]' in a checkout",
            ExitCode.CONFIG,
        ) from None
    finally:
        background.close()


def _no_tokenizer() -> NoReturn:
    raise AssertionError("a task reads its tokenizer only in open()")


def create_members(options: Options, layout: SwarmLayout) -> list[NodePlan]:
    """Create a data directory and a key for every node."""
    plans = []
    for name, role, behaviour in options.members():
        directory = layout.node(name)
        plans.append(NodePlan(name, role, behaviour, directory, create_member(directory)))
    return plans


@dataclass(frozen=True, slots=True)
class FirstPolicy:
    """First policy and files of a testnet's run; ``digest`` is the policy's, in hexadecimal."""

    model: ModelSection
    environment: EnvironmentSection
    digest: str
    files: dict[RunFileName, RunFile]


def make_first_policy(recipe: Recipe, seed: int, layout: SwarmLayout) -> FirstPolicy:
    """Train the first policy and create its task files, in a child process because of torch.

    A character-level task needs only weights. A task in text gets a whole Hugging Face directory,
    imported like any other model.
    """
    from roles.engines.bootstrap.cold_start import cold_start  # noqa: PLC0415 - see above
    from roles.engines.bootstrap.small_model import make_small_model  # noqa: PLC0415 - see above
    from roles.environments.base import environment, solved  # noqa: PLC0415 - see above

    path = layout.genesis_policy
    path.parent.mkdir(parents=True, exist_ok=True)
    if recipe.environment.in_text:
        rules = pin_task(recipe)
        make_small_model(rules, seed, layout.model, COLD_START_ACCURACY)
        section, digest = import_model(layout.model, rules, path)
        files = import_task(layout.model, None, rules, layout.task).files
        return FirstPolicy(section, rules.environment, digest.hex(), files)
    made = cold_start(
        solved(environment(recipe.environment.name)),
        recipe.model,
        seed,
        path,
        target_accuracy=COLD_START_ACCURACY,
        length_targets=recipe.sampling.length_targets,
    )
    return FirstPolicy(recipe.model, recipe.environment, made.digest.hex(), {})


def found_run(
    recipe: Recipe, first: FirstPolicy, plans: list[NodePlan], layout: SwarmLayout
) -> SignedManifest:
    """Sign and write the manifest; copy the first policy and the run's files to the trainers.

    All other nodes download them from the swarm.
    """
    creator = load_or_create_identity(layout.directory / "creator.key")
    trainers = [plan for plan in plans if plan.role is Role.TRAINER]
    validators = [plan.peer_id for plan in plans if plan.role is Role.VALIDATOR]
    rules = recipe.model_copy(update={"model": first.model, "environment": first.environment})
    signed = found(
        rules, first.digest, first.files, creator, [plan.peer_id for plan in trainers], validators
    )
    write_atomically(layout.recipe, tomlkit.dumps(rules.model_dump()).encode())
    write_atomically(layout.manifest, manifest_toml(signed).encode())
    for plan in trainers:
        give(layout.genesis_policy, DataDir(plan.directory).genesis)
        give_task(layout.task, DataDir(plan.directory).task)
    return signed
