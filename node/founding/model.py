"""Import of a run's model from a directory, a GGUF file or a hub id."""

import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from node.founding.needs import Needs, needs_of
from node.local.errors import ExitCode, NodeError
from protocol.core.types import Digest
from protocol.run.manifest import RunManifest
from protocol.run.recipe import ModelSection, Recipe

_GGUF = b"GGUF"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class LocatedModel(NamedTuple):
    """Hugging Face directory, with notes for the user, one per line."""

    directory: Path
    notes: tuple[str, ...]


@contextmanager
def located(given: Path | str, recipe: Recipe, scratch: Path) -> Iterator[LocatedModel]:
    """Yield the directory of a model; a converted one is deleted afterwards.

    ``given`` is a Hugging Face directory, a GGUF file or a hub id. A GGUF file is converted in a
    new directory below ``scratch``; a hub id is looked up in the hub's cache on this machine.
    Nothing is downloaded. Raises ``ValueError``, with a remedy, for everything else.
    """
    path = Path(given)
    if path.is_dir():
        require_model(path)
        yield LocatedModel(path, ())
    elif path.is_file():
        with path.open("rb") as file:
            if file.read(len(_GGUF)) != _GGUF:
                raise ValueError(f"{path}: neither a Hugging Face directory nor a GGUF file")
        with tempfile.TemporaryDirectory(prefix=".gguf-", dir=scratch) as folder:
            directory = Path(folder) / path.stem
            from roles.engines.bootstrap.gguf import convert_gguf  # noqa: PLC0415 - torch, seconds

            yield LocatedModel(directory, convert_gguf(path, directory, recipe.model.dtype))
    else:
        yield LocatedModel(_cached(str(given)), ())


def require_model(directory: Path) -> None:
    """Raise ``ValueError`` unless ``directory`` is a Hugging Face directory."""
    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory}: not a Hugging Face model: config.json is missing")


def import_model(directory: Path, recipe: Recipe, path: Path) -> tuple[ModelSection, Digest]:
    """Write the first policy to ``path``; return the model's section and the policy's digest.

    Configuration, weights and, for a text task, tokenizer and chat template are checked before
    anything is written. Raises ``UnsupportedModelError``, a ``ValueError`` whose ``refusals`` list
    each unsupported feature.
    """
    require_model(directory)
    from roles.engines.bootstrap.huggingface_import import import_directory  # noqa: PLC0415 - torch takes seconds

    return import_directory(directory, recipe.model, path, in_text=recipe.environment.in_text)


def notes_of_model(directory: Path) -> tuple[str, ...]:
    """Return a note on each ignored part of a model's ``config.json``.

    Raises ``ValueError`` as ``import_model``.
    """
    from roles.engines.bootstrap.huggingface_import import notes_of  # noqa: PLC0415 - torch takes seconds

    return notes_of(directory)


def prompt_tokens_max(recipe: Recipe) -> int:
    """Return the longest prompt that leaves room for ``tokens_max`` in the model's positions.

    vLLM rejects a longer sequence, but the built-in engine computes it: nodes would disagree.
    Raises ``ValueError`` when no prompt fits.
    """
    positions = int(recipe.model.config["max_position_embeddings"])
    tokens_max = recipe.sampling.tokens_max
    if tokens_max >= positions:
        raise ValueError(
            f"sampling.tokens_max: {tokens_max} leaves no room for a prompt in the {positions} "
            "positions of the model; lower it"
        )
    return positions - tokens_max


def require_positions(recipe: Recipe, prompt_tokens: int) -> None:
    """Raise ``ValueError`` unless a prompt and its answer fit into the model's positions."""
    longest = prompt_tokens_max(recipe)
    if prompt_tokens > longest:
        raise ValueError(
            f"a prompt of {prompt_tokens} tokens and an answer of {recipe.sampling.tokens_max} "
            f"exceed the {longest + recipe.sampling.tokens_max} positions of the model; leave out "
            f"prompts of more than {longest} tokens, or lower sampling.tokens_max"
        )


def needs_of_run(manifest: RunManifest) -> Needs:
    """Return the needs of a run; raises ``NodeError`` for a model that no engine supports."""
    from roles.engines.architectures.model import weights_of  # noqa: PLC0415 - torch takes seconds

    try:
        return needs_of(manifest, weights_of(manifest.model))
    except ValueError as error:
        raise NodeError(f"this software cannot compute it: {error}", ExitCode.CONFIG) from None


def _cached(given: str) -> Path:
    """Return the directory of a hub id in the hub's cache; nothing is downloaded."""
    if not _HUB_ID.fullmatch(given):
        raise ValueError(f"{given}: no such directory or GGUF file, and no hub id (OWNER/NAME)")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - it reads the environment
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        directory = Path(snapshot_download(given, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        found = "not here: no such directory, and not in the hub's cache"
    else:
        if (directory / "config.json").is_file() and any(directory.glob("*.safetensors")):
            return directory
        found = f"only in part in the hub's cache ({directory})"
    name = given.rpartition("/")[2]
    raise ValueError(
        f"{given} is {found}; download it: hf download {shlex.quote(given)} --local-dir "
        f"{shlex.quote(name)}, then give --model {shlex.quote(name)}"
    )
