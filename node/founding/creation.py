"""Creation of a run: model, task and keys in a staging directory, then thresholds and a trial."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from node.founding.calibration import CalibrationPlan, Progress, calibrate_run
from node.founding.found import create_member, found, give, manifest_toml
from node.founding.model import (
    import_model,
    located,
    needs_of_run,
    notes_of_model,
    prompt_tokens_max,
)
from node.founding.needs import Needs
from node.founding.task import RunTask, give_task, import_task
from node.founding.trial import Trial, run_trial
from node.local.datadir import DataDir, load_or_create_identity, write_atomically
from node.local.errors import ExitCode, NodeError
from protocol.core.crypto import Identity
from protocol.core.types import PeerId
from protocol.run.manifest import Predecessor, RunManifest, SignedManifest, sign_manifest
from protocol.run.recipe import Recipe
from roles.ports.background import Background

if TYPE_CHECKING:
    from node.founding.dataset import DatasetReport

MANIFEST = "run.toml"

CALIBRATION = "calibration.jsonl"
"""File of the measurement behind the thresholds, in a run's directory."""


@dataclass(frozen=True, slots=True)
class Members:
    """Trainers and validators: the numbers of new keys, and the existing keys."""

    trainers: int
    validators: int
    trainer_keys: Sequence[str] = ()
    validator_keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Source data set of a run, if it has one."""

    path: Path | None
    skip_bad: bool = False


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """Yield a temporary directory beside ``out``, which is always removed."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as directory:
            yield Path(directory)
    except OSError as error:
        raise NodeError(f"cannot write {out}: {error.strerror}", ExitCode.LOCKED) from None


class Creation:
    """Run in a staging directory; only ``keep`` writes outside of it.

    Methods raise ``NodeError`` for errors that the user can fix.
    """

    def __init__(
        self,
        directory: Path,
        signed: SignedManifest,
        creator: Identity,
        dataset: "DatasetReport | None",
    ) -> None:
        self._directory = directory
        self._creator = creator
        self.signed = signed
        self.dataset = dataset

    @classmethod
    def begin(
        cls,
        model: str,
        rows: TaskRows,
        recipe: Recipe,
        directory: Path,
        creator_key: Path | None,
        members: Members,
        say: Callable[[str], None],
    ) -> Self:
        """Write policy, files, keys and a manifest with the thresholds of ``recipe``."""
        policy, task = directory / "genesis.safetensors", directory / "task"
        try:
            imported = import_run(model, rows, recipe, policy, task, say)
        except ValueError as error:  # of the model or the task
            raise NodeError(str(error), ExitCode.CONFIG) from None
        return cls.of(imported, directory, creator_key, members)

    @classmethod
    def of(
        cls,
        imported: "Imported",
        directory: Path,
        creator_key: Path | None,
        members: Members,
        predecessor: Predecessor | None = None,
    ) -> Self:
        """Write keys and a manifest for a policy and files that are in ``directory``."""
        policy, task = directory / "genesis.safetensors", directory / "task"
        trainers = _keys(directory, "trainer", members.trainers, members.trainer_keys)
        validators = _keys(directory, "validator", members.validators, members.validator_keys)
        try:
            creator = load_or_create_identity(creator_key or directory / "creator.key")
            signed = found(
                imported.recipe,
                imported.policy,
                imported.task.files,
                creator,
                trainers,
                validators,
                int(time.time()),
                predecessor,
            )
        except ValueError as error:  # of the members
            raise NodeError(str(error), ExitCode.CONFIG) from None
        write_atomically(directory / MANIFEST, manifest_toml(signed).encode())
        for trainer in sorted(directory.glob("trainer-*")):
            give(policy, DataDir(trainer).genesis)
        for member in (*directory.glob("trainer-*"), *directory.glob("validator-*")):
            give_task(task, DataDir(member).task)
        return cls(directory, signed, creator, imported.task.dataset)

    @property
    def manifest(self) -> RunManifest:
        """Current manifest."""
        return self.signed.manifest

    @property
    def needs(self) -> Needs:
        """Estimate of the memory, disk and work that the run needs."""
        return needs_of_run(self.manifest)

    def calibrate(self, plan: CalibrationPlan, background: Background, progress: Progress) -> None:
        """Measure thresholds with the run's model, and sign the manifest again."""
        policy, task = self._directory / "genesis.safetensors", self._directory / "task"
        try:
            measured = calibrate_run(self.manifest, policy, task, plan, background, progress)
        except ValueError as error:
            raise NodeError(f"the run cannot be calibrated: {error}", ExitCode.CONFIG) from None
        fitted = self.manifest.model_copy(update={"toploc": measured.rules})
        self.signed = sign_manifest(fitted, self._creator)
        write_atomically(self._directory / MANIFEST, manifest_toml(self.signed).encode())

    def attempt(self, device: str, background: Background, say: Callable[[str], None]) -> Trial:
        """Run a trial, in which the thresholds must not reject honest answers."""
        policy, task = self._directory / "genesis.safetensors", self._directory / "task"
        try:
            trial = run_trial(self.manifest, policy, task, device, background, say)
        except ValueError as error:
            raise NodeError(str(error), ExitCode.CONFIG) from None
        if trial.rejected:
            raise NodeError(
                f"the run's thresholds reject {len(trial.rejected)} honest rollouts of its own "
                f"model ({trial.rejected[0]}): measure without --uncalibrated, for longer "
                "(--minutes), or with more --margin",
                ExitCode.CONFIG,
            )
        return trial

    def keep(self, out: Path, calibration: Path | None) -> None:
        """Move everything to ``out``, the manifest last: it marks the run as complete.

        ``calibration`` is the measurement file to move along, None to leave it.
        """
        out.mkdir(mode=0o700, exist_ok=True)
        if calibration is not None and calibration.exists():
            calibration.rename(out / CALIBRATION)
        names = sorted(path.name for path in self._directory.iterdir() if path.name != MANIFEST)
        for name in (*names, MANIFEST):
            (self._directory / name).rename(out / name)


class Imported(NamedTuple):
    """Recipe with the run's model, digest of the first policy (hexadecimal), and task."""

    recipe: Recipe
    policy: str
    task: RunTask


def import_run(
    model: str, rows: TaskRows, recipe: Recipe, policy: Path, task: Path, say: Callable[[str], None]
) -> Imported:
    """Write a run's first policy and task files; report notes to ``say``.

    ``model`` is a Hugging Face directory, a GGUF file or a hub id. Raises ``ValueError`` for an
    unsupported model; if there are several reasons, ``say`` gets each.
    """
    from roles.engines.architectures.configuration import (  # noqa: PLC0415 - torch takes seconds
        UnsupportedModelError,
    )

    try:
        with located(model, recipe, policy.parent) as (directory, notes):
            section, digest = import_model(directory, recipe, policy)
            rules = recipe.model_copy(update={"model": section})
            prompt_tokens_max(rules)
            for note in (*notes, *notes_of_model(directory)):
                say(f"note: {note}")
            found_task = import_task(
                directory, rows.path, rules, task, skip_bad_rows=rows.skip_bad, say=say
            )
    except UnsupportedModelError as error:
        if len(error.refusals) > 1:
            for refusal in error.refusals:
                say(f"refused: {refusal}")
        raise
    return Imported(rules, digest.hex(), found_task)


def _keys(directory: Path, role: str, count: int, known: Sequence[str]) -> list[PeerId]:
    made = [create_member(directory / f"{role}-{number}") for number in range(1, count + 1)]
    return [*made, *map(PeerId, known)]
