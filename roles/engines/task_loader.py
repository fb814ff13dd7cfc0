"""Load the run's task in the daemon; a task needs no engine."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from protocol.run.manifest import RunManifest
from roles.environments.base import environment
from roles.environments.threaded import InBackground
from roles.ports.background import Background
from roles.ports.engines import Environment
from roles.ports.text import Tokenizer


def task_of(
    manifest: RunManifest, task_data: Path, background: Background, runtimes: Sequence[Path] = ()
) -> Environment:
    """Return the task; ``task_data`` is the directory of the run's opened files.

    ``runtimes`` are directories of installed scoring runtimes. Raises ``ValueError`` for a task
    that is unknown or that this machine cannot run.
    """
    section = manifest.environment
    if not section.in_text:
        return InBackground(environment(section.name), background)
    from roles.environments.registry import text_task  # noqa: PLC0415 - only text tasks need it
    from roles.environments.usable_rows import PromptRoom  # noqa: PLC0415 - the same

    def read_tokenizer() -> Tokenizer:
        from roles.engines.files.tokenizer import of_bundle  # noqa: PLC0415 - takes seconds

        founded_at = datetime.fromtimestamp(manifest.genesis.created_at, UTC)
        return of_bundle(task_data / "bundle", manifest.model.vocabulary_size, founded_at)

    room = PromptRoom.of(manifest)
    rule = manifest.evaluation
    return text_task(
        section,
        task_data / "dataset",
        read_tokenizer,
        background,
        room,
        runtimes,
        None if rule is None else rule.rows_per_held_out_row,
    )
