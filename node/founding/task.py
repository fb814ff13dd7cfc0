"""The task of a run: the files that its nodes need for it, checked before anybody has them."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from node.founding.found import give
from node.local.config import runtime_directories
from node.storage.sharded_files import index_of
from protocol.bundle import BUNDLE_FILES, encode_bundle
from protocol.crypto import digest
from protocol.manifest import RunFile, RunFileName
from protocol.recipe import Recipe, ShardcastSection
from protocol.shardcast.index import encode


def pin_task(recipe: Recipe) -> Recipe:
    """Return the recipe with the package and the scoring runtime of its task, if it has them.

    What the recipe leaves out is as it is installed here. Raises ``ValueError`` where it names
    something else than what is installed.
    """
    if not recipe.environment.in_text:
        return recipe
    from roles.environments.families import pinned_task  # noqa: PLC0415 - tasks may be heavy

    pinned = pinned_task(recipe.environment, runtime_directories(os.environ))
    return recipe.model_copy(update={"environment": pinned})


def import_task(
    model: Path, dataset: Path | None, recipe: Recipe, directory: Path
) -> dict[RunFileName, RunFile]:
    """Write what a run's nodes need for its task to ``directory``; return it by name.

    ``model`` is a Hugging Face directory. Raises ``ValueError`` for a task that is not there, that
    the model cannot do, or whose files are not what they should be.
    """
    if not recipe.environment.in_text:
        if dataset is not None:
            raise ValueError(f"environment {recipe.environment.name!r} takes no data set")
        _require_characters(recipe)
        return {}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "bundle").write_bytes(encode_bundle(dict(_small_files(model))))
    if dataset is not None:
        give(dataset, directory / "dataset")
    _require_text(recipe, directory, has_dataset=dataset is not None)
    names: tuple[RunFileName, ...] = ("bundle", "dataset") if dataset is not None else ("bundle",)
    return {name: _run_file(directory / name, recipe.shardcast) for name in names}


def give_task(directory: Path, member: Path) -> None:
    """Let a member have the files that ``import_task`` wrote, in its directory of them."""
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
    """Raise ``ValueError`` for a task that is not there or whose tokens the model lacks."""
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


def _require_text(recipe: Recipe, directory: Path, *, has_dataset: bool) -> None:
    """Raise ``ValueError`` unless nodes can read the files and ask the task of the model."""
    from roles.engines.tokenizer import of_bundle  # noqa: PLC0415 - takes seconds
    from roles.environments.families import require_task  # noqa: PLC0415 - tasks may be heavy

    tokenizer = of_bundle(
        directory / "bundle", recipe.model.vocabulary_size, datetime.fromtimestamp(0, UTC)
    )
    chat = require_task(recipe.environment, directory / "dataset" if has_dataset else None)
    try:
        tokenizer.encode_chat(*chat)
    except Exception as error:  # noqa: BLE001 - a template raises what it likes
        reason = " ".join(str(error).split())
        raise ValueError(f"the model's chat template cannot hold the task: {reason}") from None
