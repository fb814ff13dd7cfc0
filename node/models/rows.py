"""Evaluation task over the rows of a file, without those that the run learns from."""

from collections.abc import Callable
from pathlib import Path

from node.founding.dataset import prepare_dataset
from node.founding.task import pin_section
from node.local.errors import ExitCode, NodeError
from node.models.held import HeldRun
from node.models.tasks import EvaluationTask
from protocol.run.manifest import RunManifest
from protocol.run.recipe import Recipe
from roles.engines.files.tokenizer import HuggingFaceTokenizer
from roles.environments.registry import COLUMNS
from roles.environments.rows import CHAT_BEFORE

Say = Callable[[str], None]


def row_task(
    family: str | None,
    source: Path,
    run: RunManifest,
    held: HeldRun | None,
    tokenizer: HuggingFaceTokenizer,
    directory: Path,
    say: Say,
) -> EvaluationTask:
    """Return a task over the usable rows of a file, which are written to ``directory``.

    ``family`` is ``math`` or ``code``, None for that of the run. ``held`` may have the run's own
    rows. Raises ``NodeError``.
    """
    own = run.environment.name.partition("/")[0]
    family = family or own
    if family not in COLUMNS:
        raise NodeError(
            f"the run's task is {run.environment.name}; add --tasks {' or '.join(COLUMNS)} to say "
            f"what the rows of {source} are",
            ExitCode.USAGE,
        )
    changes: dict[str, object] = {"pass_rates": ()}
    if family != own:
        changes |= {"name": f"{family}/rows", "options": {}, "examples": (), "runtime": None}
    target = directory / f"{family}.parquet"
    try:
        section = run.environment.model_copy(update=changes)
        section = section if family == own else pin_section(section)
        recipe = Recipe.model_validate(
            {**run.model_dump(exclude={"genesis"}), "environment": section.model_dump()}
        )
        prepare_dataset(source, target, recipe, tokenizer, skip_bad_rows=True, say=say)
    except ValueError as error:
        raise NodeError(str(error), ExitCode.CONFIG) from None
    known = held is not None and "dataset" in run.genesis.files
    if known and held is not None:
        _leave_out(held.run_file("dataset"), target, source, say)
    held_out = known or "dataset" not in run.genesis.files
    return EvaluationTask(section, f"rows of {source}", held_out, run, target)


def _leave_out(known: Path, target: Path, source: Path, say: Say) -> None:
    """Remove the rows from ``target`` whose question is in ``known``."""
    from pyarrow import parquet  # noqa: PLC0415 - only where a run has a data set

    learned = dict.fromkeys(_questions(known))
    table = parquet.read_table(target)
    kept = [place for place, one in enumerate(_questions(target)) if one not in learned]
    if not kept:
        raise NodeError(
            f"the run learns from all rows of {source}; use other rows, or omit --dataset",
            ExitCode.CONFIG,
        )
    if left_out := table.num_rows - len(kept):
        say(f"{source}: {left_out:,} rows are left out, the run learns from them")
        parquet.write_table(table.take(kept), target, row_group_size=128)


def _questions(path: Path) -> list[tuple[str, str]]:
    from pyarrow import parquet  # noqa: PLC0415 - as above

    names = [name for name in ("prompt", CHAT_BEFORE) if name in parquet.read_schema(path).names]
    rows = parquet.read_table(path, columns=names).to_pylist()
    return [(row["prompt"], row.get(CHAT_BEFORE) or "") for row in rows]
