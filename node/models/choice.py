"""Models and tasks of an evaluation, from command line options."""

from collections.abc import Callable, Sequence
from pathlib import Path

from node.local.errors import ExitCode, NodeError
from node.models.held import HeldRun
from node.models.subject import EvaluatedModel, directory_subject, held_subject
from node.models.tasks import GENERATORS, OWN, EvaluationTask, generated_task, own_task

ROWS = ("math", "code")


def subjects_of(
    held: HeldRun | None, versions: str | None, models: Sequence[Path]
) -> list[EvaluatedModel]:
    """Return the versions, then the directories; the newest version if none is named.

    A directory without its own manifest uses the rules of the ``held`` run. Raises ``NodeError``.
    """
    numbers: list[int | None] = [] if models else [None]
    if versions is not None:
        try:
            numbers = [int(one) for one in versions.split(",")]
        except ValueError:
            raise NodeError(
                f"--versions {versions}: give numbers, such as 0,12", ExitCode.USAGE
            ) from None
    found = []
    if held is not None:
        found = [held_subject(held, held.version(number)) for number in numbers]
    run = None if held is None else held.manifest
    return [*found, *(directory_subject(model, run) for model in models)]


def tasks_of(
    names: str,
    dataset: Path | None,
    held: HeldRun | None,
    subject: EvaluatedModel,
    scratch: Path,
    say: Callable[[str], None],
) -> list[EvaluationTask]:
    """Return the tasks of ``names``; a converted ``dataset`` goes to ``scratch``.

    The rules are those of the first subject's run. Raises ``NodeError``.
    """
    run = subject.run
    found = []
    for name in dict.fromkeys(names.split(",")):
        family, _, generator = name.replace(":", "/", 1).partition("/")
        if family == GENERATORS and generator:
            found.append(generated_task(generator, run))
            continue
        if name != OWN and name not in ROWS:
            raise NodeError(
                f"no task {name!r}: use {OWN}, {GENERATORS}:NAME, or with --dataset "
                f"{' or '.join(ROWS)}",
                ExitCode.USAGE,
            )
        if run is None:
            raise NodeError(
                f"{subject.name} belongs to no run: add the --data-dir of a node, or --tasks "
                f"{GENERATORS}:NAME",
                ExitCode.USAGE,
            )
        if dataset is not None and not run.environment.in_text:
            raise NodeError(
                f"{subject.name} has no tokenizer for rows: the task of its run, "
                f"{run.environment.name}, is over characters",
                ExitCode.USAGE,
            )
        if dataset is not None:
            from node.models.rows import row_task  # noqa: PLC0415 - tasks may be heavy

            rows = None if name == OWN else name
            try:
                tokenizer = subject.read_tokenizer()
            except ValueError as error:
                raise NodeError(f"{subject.name}: {error}", ExitCode.CONFIG) from None
            found.append(row_task(rows, dataset, run, held, tokenizer, scratch, say))
        elif name == OWN:
            found.append(own_task(run, held))
        else:
            raise NodeError(f"--tasks {name} needs rows: add --dataset FILE", ExitCode.USAGE)
    return found
