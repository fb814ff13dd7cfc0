"""Rules, final version and files that a successor takes over from the data directory of a node.

The successor begins at version 0, with the weights of the final version and a fresh optimiser.
"""

from dataclasses import dataclass
from pathlib import Path

from node.founding.creation import Imported
from node.founding.found import give
from node.founding.task import RunTask
from node.local.errors import ExitCode, NodeError
from node.local.units import duration_text
from node.models.held import HeldRun, HeldVersion
from protocol.core.types import Digest
from protocol.replica.succession import NoSuccession, predecessor_of
from protocol.run.manifest import Predecessor
from protocol.run.recipe import ModelSection, Recipe

QUIET_PERIODS = 2
"""Recovery periods without a final page after which a council counts as gone. In the second one the
members that are left may still remove the others."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """State, rules and final version of the predecessor that a successor takes over."""

    predecessor: Predecessor
    recipe: Recipe
    version: HeldVersion
    warning: str
    """Reason why other nodes may know a later final page; empty if there is none."""


def inheritance(
    held: HeldRun, now: float, *, steps: int | None = None, force: bool = False
) -> Inheritance:
    """Return what a successor takes over at unix time ``now``.

    Its ``steps`` are by default those that the predecessor had left. Raises ``NodeError`` if
    nothing is final, or the final version is not in the directory, and unless ``force`` if a page
    became final recently.
    """
    found = predecessor_of(held.replica)
    if isinstance(found, NoSuccession):
        remedy = {
            NoSuccession.NO_PAGE: "start its node until prime-node council shows a final page",
            NoSuccession.NO_VERSION: "found a run from the same model with prime-node run create",
            NoSuccession.UNKNOWN_VERSION: "start its node so that it synchronises",
        }[found]
        raise NodeError(
            f"{held.root}: {found}; {remedy}, or give another --data-dir", ExitCode.CONFIG
        )
    manifest = held.manifest
    age = manifest.epoch_at(now) - found.epoch
    quiet = QUIET_PERIODS * manifest.council.recovery_epochs
    if age < quiet and not force:
        seconds = duration_text((quiet - age) * manifest.epochs.seconds)
        raise NodeError(
            f"the council may be alive: its newest final page is {age} epochs old, and counts as "
            f"the last one after {quiet} epochs; try again in {seconds}, or add --force",
            ExitCode.RETRY,
        )
    version = held.versions.get(found.version)
    if version is None:
        raise NodeError(
            f"{held.root} does not hold the weights of the final version {found.version}; start "
            "its node while others have them, or give the --data-dir of a node that holds them",
            ExitCode.CONFIG,
        )
    recipe = _recipe(held, found.version, steps)
    return Inheritance(found, recipe, version, _warning(held, found.epoch))


def _warning(held: HeldRun, final_epoch: int) -> str:
    """Return a warning if the node stopped too early to see that the council is gone."""
    replica = held.replica
    commits = (one.commit.message.epoch for one in replica.ledger.commits.all_entries())
    last = max(final_epoch, *replica.pages.heard.values(), *commits)
    if last - final_epoch >= held.manifest.council.recovery_epochs:
        return ""
    return (
        f"this node received nothing after epoch {last}, and its newest final page is of epoch "
        f"{final_epoch}; if other nodes ran for longer, compare theirs (--dry-run)"
    )


def _recipe(held: HeldRun, version: int, steps: int | None) -> Recipe:
    """Return the rules of the run, with the steps that are left."""
    grpo = held.manifest.grpo
    left = grpo.steps - version if steps is None else steps
    if left < 1:
        raise NodeError(
            f"the run has made all its {grpo.steps} versions; add --steps to train more",
            ExitCode.CONFIG,
        )
    values = {name: getattr(held.manifest, name) for name in Recipe.model_fields}
    return Recipe(**{**values, "grpo": grpo.model_copy(update={"steps": left})})


def take_over(held: HeldRun, inherited: Inheritance, directory: Path) -> Imported:
    """Link policy and files of a successor into ``directory``, and verify them.

    Raises ``NodeError`` if a file is missing or is not what the run's trainer or creator signed.
    """
    policy, task = directory / "genesis.safetensors", directory / "task"
    version, model = inherited.version, inherited.recipe.model
    try:
        give(version.path, policy)
        _verify_policy(policy, version.digest, model)
    except (OSError, ValueError) as error:
        raise NodeError(
            f"the weights of version {version.version} cannot be used: {error}; give the "
            "--data-dir of another node",
            ExitCode.CONFIG,
        ) from None
    files = dict(held.manifest.genesis.files)
    if files:
        task.mkdir()
    for name in files:
        give(held.run_file(name), task / name)
    return Imported(inherited.recipe, version.digest.hex(), RunTask(files))


def _verify_policy(path: Path, digest: Digest, model: ModelSection) -> None:
    """Raise ``ValueError`` unless a file holds a policy."""
    from roles.engines.architectures.configuration import configuration  # noqa: PLC0415 - torch takes seconds
    from roles.engines.architectures.model import shapes_of  # noqa: PLC0415 - the same
    from roles.engines.files.policy import read_policy  # noqa: PLC0415 - the same

    read_policy(path, digest, shapes_of(configuration(model.architecture, model.config)))
