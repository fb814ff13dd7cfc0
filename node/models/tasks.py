"""Tasks of an evaluation, and their held-out problems.

A run learns from problem seeds of 64 bits (``protocol.rollout.assignment``). Evaluation seeds have
65 bits, so a task that generates problems yields other ones, as far as it has others. A run over
rows holds rows out if its manifest has a section ``evaluation``; otherwise evaluate rows of another
file.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from node.local.config import runtime_directories
from node.local.errors import ExitCode, NodeError
from node.models.held import HeldRun
from protocol.core.rng import Rng
from protocol.rollout.assignment import HELD_OUT_SEED
from protocol.run.manifest import RunManifest
from protocol.run.recipe import EnvironmentSection
from protocol.run.toml import validated
from roles.ports.background import Background
from roles.ports.engines import Environment
from roles.ports.text import Tokenizer

OWN = "own"
"""Name of the run's own task."""

GENERATORS = "reasoning-gym"


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """Task, with the parquet file of its rows if it has any.

    ``problems`` describes their source; ``rules`` is the run whose prompt limits apply.
    """

    section: EnvironmentSection
    problems: str
    held_out: bool
    rules: RunManifest | None
    rows: Path = Path()
    rows_per_held_out_row: int | None = None
    """Value in the manifest of the rows' run."""

    @property
    def name(self) -> str:
        """Name in manifests."""
        return self.section.name

    @property
    def is_generated(self) -> bool:
        """True if seeds generate the problems, rather than select rows."""
        return self.rows == Path()

    @property
    def length_targets(self) -> tuple[int | None, ...]:
        """Length targets of successive problems."""
        return (self.rules and self.rules.sampling.length_targets) or (None,)

    def environment(
        self, read_tokenizer: Callable[[], Tokenizer], background: Background
    ) -> Environment:
        """Return the task for a model; raises ``NodeError`` if it cannot run on this machine."""
        from roles.environments.base import environment  # noqa: PLC0415 - tasks may be heavy
        from roles.environments.threaded import InBackground  # noqa: PLC0415 - the same

        if not self.section.in_text:
            return InBackground(environment(self.name), background)
        from roles.environments.registry import text_task  # noqa: PLC0415 - the same
        from roles.environments.usable_rows import PromptRoom  # noqa: PLC0415 - the same

        room = PromptRoom(None, ()) if self.rules is None else PromptRoom.of(self.rules)
        runtimes = runtime_directories(os.environ)
        try:
            return text_task(
                self.section,
                self.rows,
                read_tokenizer,
                background,
                room,
                runtimes,
                self.rows_per_held_out_row,
            )
        except ValueError as error:
            raise NodeError(
                f"{self.name} cannot be scored here: {error}", ExitCode.CONFIG
            ) from None


def problem_seeds(seed: int) -> Iterator[int]:
    """Yield the seeds of held-out problems."""
    draws = Rng(seed.to_bytes(8, "big")).child("held-out problems")
    while True:
        yield HELD_OUT_SEED + draws.bits64()


def own_task(run: RunManifest, held: HeldRun | None) -> EvaluationTask:
    """Return the run's own task, with the ``held`` rows; raises ``NodeError``."""
    section = run.environment
    per = None if run.evaluation is None else run.evaluation.rows_per_held_out_row
    if "dataset" in run.genesis.files:
        if held is None:
            raise NodeError(
                f"an exported directory has no rows of {section.name}: add the --data-dir of a "
                "node, or --dataset FILE",
                ExitCode.USAGE,
            )
        rows = held.run_file("dataset")
        problems = "rows that the run learns from" if per is None else "rows that the run holds out"
        return EvaluationTask(section, problems, per is not None, run, rows, per)
    if section.name.startswith("verifiers/"):  # its package has a fixed number of problems
        held_out = "learns from" if per is None else "holds out"
        return EvaluationTask(
            section,
            f"problems that the run {held_out}",
            per is not None,
            run,
            rows_per_held_out_row=per,
        )
    return EvaluationTask(section, "seeds that no run draws", True, run)


def generated_task(generator: str, run: RunManifest | None) -> EvaluationTask:
    """Return a generator of reasoning-gym with its default options.

    The system message of ``run`` precedes each problem. Raises ``NodeError``.
    """
    from node.founding.task import pin_section  # noqa: PLC0415 - tasks may be heavy
    from roles.environments.registry import require_task  # noqa: PLC0415 - the same

    name = f"{GENERATORS}/{generator}"
    if run is not None and run.environment.name == name:
        return own_task(run, None)
    values = {"name": name, "system": "" if run is None else run.environment.system}
    try:
        section = pin_section(validated(EnvironmentSection, values))
        require_task(section, has_dataset=False)
    except ValueError as error:
        raise NodeError(f"--tasks {GENERATORS}:{generator}: {error}", ExitCode.USAGE) from None
    return EvaluationTask(section, "seeds that no run draws", True, None)
