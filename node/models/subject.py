"""Model to chat with or to evaluate: a held version, or a Hugging Face directory."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run
from node.models.held import MANIFEST, HeldRun, HeldVersion
from protocol.run.manifest import RunManifest

if TYPE_CHECKING:
    from roles.engines.files.tokenizer import HuggingFaceTokenizer
    from roles.engines.local_model import LocalModel


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """Model and its loaders; ``load`` takes a device, and both loaders raise ``ValueError``."""

    name: str
    version: int | None
    digest: str | None
    run: RunManifest | None
    """Run with the rules for its prompts and computation, if there is one."""
    load: Callable[[str], "LocalModel"]
    read_tokenizer: Callable[[], "HuggingFaceTokenizer"]

    def loaded(self, device: str) -> "LocalModel":
        """Return the model on a device; raises ``NodeError``."""
        try:
            return self.load(device)
        except (ValueError, RuntimeError) as error:
            raise NodeError(f"{self.name} cannot be loaded: {error}", ExitCode.CONFIG) from None


def held_subject(held: HeldRun, version: HeldVersion) -> EvaluatedModel:
    """Return a held version as a model."""
    manifest = held.manifest

    def load(device: str) -> "LocalModel":
        from roles.engines.local_model import LocalModel  # noqa: PLC0415 - torch takes seconds

        precision = manifest.toploc.precision
        return LocalModel.of_policy(manifest.model, precision, version.path, version.digest, device)

    def read_tokenizer() -> "HuggingFaceTokenizer":
        from roles.engines.files.tokenizer import of_bundle  # noqa: PLC0415 - takes seconds

        if not manifest.environment.in_text:
            raise ValueError(f"the run's task {manifest.environment.name} is over characters")
        path = held.run_file("bundle")
        return of_bundle(path, manifest.model.vocabulary_size, founded_at(manifest))

    return EvaluatedModel(
        f"version {version.version}",
        version.version,
        version.digest.hex(),
        manifest,
        load,
        read_tokenizer,
    )


def directory_subject(directory: Path, run: RunManifest | None = None) -> EvaluatedModel:
    """Return the model in a Hugging Face directory, such as an exported one.

    Its run is that of the directory's own manifest, or else ``run``. Raises ``NodeError``.
    """
    if not (directory / "config.json").is_file():
        raise NodeError(
            f"{directory} is not a Hugging Face directory: config.json is missing", ExitCode.CONFIG
        )
    if (directory / MANIFEST).is_file():
        run = load_run(directory / MANIFEST).manifest

    def load(device: str) -> "LocalModel":
        from roles.engines.local_model import LocalModel  # noqa: PLC0415 - torch takes seconds

        if run is None:
            return LocalModel.of_directory(directory, None, "fp32", device)
        precision = run.toploc.precision
        return LocalModel.of_directory(directory, precision, run.model.head, device)

    def read_tokenizer() -> "HuggingFaceTokenizer":
        from roles.engines.bootstrap.huggingface_import import config_of_directory  # noqa: PLC0415 - torch, seconds
        from roles.engines.files.tokenizer import HuggingFaceTokenizer  # noqa: PLC0415 - the same

        vocabulary_size = config_of_directory(directory).vocab_size
        made_at = (directory / "config.json").stat().st_mtime
        date = datetime.fromtimestamp(made_at, UTC) if run is None else founded_at(run)
        return HuggingFaceTokenizer(directory, vocabulary_size, date)

    return EvaluatedModel(str(directory), None, None, run, load, read_tokenizer)


def founded_at(run: RunManifest) -> datetime:
    """Return the run's date, which a chat template may use."""
    return datetime.fromtimestamp(run.genesis.created_at, UTC)
