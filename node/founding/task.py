"""Import of a run's task: check and write the files that its nodes need."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from node.founding.found import give
from node.founding.recipes import read_recipe
from node.local.config import runtime_directories
from node.local.errors import ExitCode, NodeError
from node.storage.sharded_files import index_of
from protocol.core.crypto import digest
from protocol.run.manifest import RunFile, RunFileName
from protocol.run.model_files import BUNDLE_FILES, encode_bundle
from protocol.run.recipe import EnvironmentSection, Recipe, ShardcastSection
from protocol.shardcast.index import encode

if TYPE_CHECKING:
    from node.founding.dataset import DatasetReport


class RunTask(NamedTuple):
    """Files of a run's task by name, and the report on its data set, if it has one."""

    files: dict[RunFileName, RunFile]
    dataset: "DatasetReport | None" = None


def pin_task(recipe: Recipe) -> Recipe:
    """Return the recipe with its task's package and scoring runtime pinned, if it has them.

    Omitted versions become those installed here. Raises ``ValueError`` where the recipe names other
    versions than the installed ones.
    """
    if not recipe.environment.in_text:
        return recipe
    return recipe.model_copy(update={"environment": pin_section(recipe.environment)})


def pin_section(section: EnvironmentSection) -> EnvironmentSection:
    """Return a text task with its package and scoring runtime pinned; raises as ``pin_task``."""
    from roles.environments.registry import pinned_task  # noqa: PLC0415 - tasks may be heavy

    return pinned_task(section, runtime_directories(os.environ))


def pinned_recipe(recipe: str) -> Recipe:
    """Return a recipe, by name or file, with its task pinned; raises ``NodeError``."""
    from roles.environments.runtime import NoRuntimeError  # noqa: PLC0415 - tasks may be heavy

    try:
        return pin_task(read_recipe(recipe))
    except NoRuntimeError as error:
        raise NodeError(error.told(f"--recipe {recipe}"), ExitCode.CONFIG) from None
    except ValueError as error:
        raise NodeError(str(error), ExitCode.CONFIG) from None


def import_task(
    model: Path,
    dataset: Path | None,
    recipe: Recipe,
    directory: Path,
    *,
    skip_bad_rows: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> RunTask:
    """Write the files of a run's task to ``directory``.

    ``model`` is a Hugging Face directory; ``say`` gets progress lines on a data set. Raises
    ``ValueError`` (such as ``DatasetError``) for an unknown task, one that does not fit the model,
    or invalid files.
    """
    if not recipe.environment.in_text:
        if dataset is not None:
            raise ValueError(f"environment {recipe.environment.name!r} takes no data set")
        _require_characters(recipe)
        return RunTask({})
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "bundle").write_bytes(encode_bundle(dict(_small_files(model))))
    report = _import_text(recipe, directory, dataset, skip_bad_rows=skip_bad_rows, say=say)
    names: tuple[RunFileName, ...] = ("bundle", "dataset") if dataset is not None else ("bundle",)
    files = {name: _run_file(directory / name, recipe.shardcast) for name in names}
    return RunTask(files, report)


def give_task(directory: Path, member: Path) -> None:
    """Link the files that ``import_task`` wrote into a member's directory."""
    if directory.exists():
        member.mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.iterdir()):
            give(path, member / path.name)


def _small_files(model: Path) -> Iterator[tuple[str, bytes]]:
    for name in BUNDLE_FILES:
        path = model / name
        if path.is_file():
            yield name, path.read_bytes()


def _run_file(path: Path, rules: ShardcastSection) -> RunFile:
    index = index_of(path, rules.shard_bytes, rules.chunk_bytes)
    data = encode(index)
    return RunFile(index=digest(data).hex(), index_bytes=len(data), total_bytes=index.total_bytes)


def _require_characters(recipe: Recipe) -> None:
    """Raise ``ValueError`` for an unknown task or one whose tokens the model lacks."""
    from roles.environments.base import END, environment  # noqa: PLC0415 - tasks may be heavy

    task, model = environment(recipe.environment.name), recipe.model
    if task.vocabulary_size > model.vocabulary_size:
        raise ValueError(
            f"environment {task.name!r} has {task.vocabulary_size} tokens, the model "
            f"{model.vocabulary_size}"
        )
    if END not in model.end_tokens:
        raise ValueError(
            f"environment {task.name!r} ends answers with token {END}, the model with "
            f"{', '.join(map(str, model.end_tokens))}"
        )


def _import_text(
    recipe: Recipe,
    directory: Path,
    dataset: Path | None,
    *,
    skip_bad_rows: bool,
    say: Callable[[str], None],
) -> "DatasetReport | None":
    """Check that the model's chat template fits the task (else ``ValueError``); write its data."""
    from roles.engines.files.tokenizer import of_bundle  # noqa: PLC0415 - takes seconds
    from roles.environments.preamble import primed  # noqa: PLC0415 - the same
    from roles.environments.registry import require_task  # noqa: PLC0415 - tasks may be heavy

    founded_at = datetime.fromtimestamp(0, UTC)
    plain = of_bundle(directory / "bundle", recipe.model.vocabulary_size, founded_at)
    tokenizer = primed(plain, recipe.environment)
    chat = require_task(recipe.environment, has_dataset=dataset is not None)
    try:
        tokenizer.encode_chat(*chat)
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        reason = " ".join(str(error).split())
        raise ValueError(f"the model's chat template cannot hold the task: {reason}") from None
    if dataset is None:
        return None
    from node.founding.dataset import prepare_dataset  # noqa: PLC0415 - tasks may be heavy

    return prepare_dataset(
        dataset,
        directory / "dataset",
        recipe,
        plain,
        skip_bad_rows=skip_bad_rows,
        say=say,
    )
