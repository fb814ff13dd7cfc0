"""The run's task, as the daemon asks it: it computes in no engine."""

from pathlib import Path

from protocol.manifest import RunManifest
from roles.environments.base import environment
from roles.environments.blocking import InBackground
from roles.ports.background import Background
from roles.ports.engines import Environment


def task_of(manifest: RunManifest, task_data: Path, background: Background) -> Environment:
    """Return the task; ``task_data`` is the directory of the run's tokenizer and data sets.

    Raises ``ValueError`` for one that this software does not have or this machine cannot run.
    """
    name = manifest.environment.name
    if "/" not in name:
        return InBackground(environment(name), background)
    from roles.engines.tokenizer import HuggingFaceTokenizer  # noqa: PLC0415 - takes seconds
    from roles.environments.families import text_task  # noqa: PLC0415 - where a run has one

    tokenizer = HuggingFaceTokenizer(task_data / "tokenizer")
    return text_task(name, task_data, tokenizer, background)
