"""Import of a Hugging Face directory: the manifest's model section and the run's policy.

Weights are read only from safetensors, because other formats run code. Tensors are memory-mapped:
only those with another dtype are copied, and at most one copy of each exists.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.core.types import Digest
from protocol.run.recipe import ModelSection
from protocol.run.toml import validated
from roles.engines.architectures.architecture import Config
from roles.engines.architectures.configuration import UnsupportedModelError, examine, explicit
from roles.engines.architectures.model import shapes_of
from roles.engines.files.policy import DTYPES, Precision, write_policy
from roles.engines.files.tokenizer import HuggingFaceTokenizer

_JSON_BYTES_MAX = 16 * 1024 * 1024
"""A guess: the index of a model with thousands of tensors takes a few hundred thousand."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of plain weights; others mean quantised weights."""

_DERIVED = ".rotary_emb.inv_freq"
"""Angles in old files, which follow from the configuration; Hugging Face ignores them."""

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"

_POINTER = b"version https://git-lfs"
"""First bytes of a file that Git LFS has not downloaded."""

_NAMED_MAX = 5

_PIECE_ELEMENTS = 4 * 2**20
"""Elements rounded and checked at once: 16 MB of float32. A guess."""

_INCOMPLETE = (
    "config.json and weights belong to different models, or files are missing: download all again"
)
_OTHER_TENSORS = (
    "the model has other parts than config.json says: use its text model, merge its adapter, or "
    "save it anew with transformers"
)
_UNTIED = "set tie_word_embeddings to false if the model has an output layer of its own"
_QUANTISED = "save the weights in float32, float16 or bf16"
_DIVERGED = "use an earlier checkpoint, or dtype fp32 if only rounding makes them infinite"
"""Advice for each kind of tensor fault."""


def section_of(directory: Path, section: ModelSection) -> ModelSection:
    """Return the model section of a Hugging Face directory, with the precisions of ``section``.

    Raises ``ValueError``, or ``UnsupportedModelError`` for an unsupported model.
    """
    config, _ = _examined(directory)
    values = {
        "name": _name(directory),
        "architecture": config.model_type,
        "config": explicit(config),
        "dtype": section.dtype,
        "head": section.head,
        "rounding": section.rounding,
    }
    return validated(ModelSection, values)


def notes_of(directory: Path) -> tuple[str, ...]:
    """Return a line for each ignored key of the directory's ``config.json``.

    Raises ``ValueError`` as ``section_of``.
    """
    return _examined(directory)[1]


def import_pretrained(directory: Path, path: Path, precision: Precision) -> Digest:
    """Write the policy of a Hugging Face directory to ``path``, one safetensors file.

    Raises ``ValueError`` as ``section_of``. Raises ``UnsupportedModelError`` also for missing,
    unexpected, misshapen or non-finite tensors, by name; ``StorageFullError`` as ``write_policy``.
    """
    config, _ = _examined(directory)
    tensors = _weights(directory, config, DTYPES[precision])
    return write_policy(tensors, path, DTYPES[precision])


def import_directory(
    directory: Path, model: ModelSection, path: Path, *, in_text: bool
) -> tuple[ModelSection, Digest]:
    """Write a directory's policy to ``path``; return the model section and the policy's digest.

    Configuration, weights and, for a task ``in_text``, tokenizer and chat template are checked
    before anything is written. Raises ``UnsupportedModelError`` with all faults;
    ``StorageFullError`` as ``write_policy``.
    """
    refusals: list[str] = []
    section, config = None, None
    with _collecting(refusals):
        config, _ = _examined(directory)
        section = section_of(directory, model)
    tensors: dict[str, Tensor] = {}
    with _collecting(refusals):
        tensors = _weights(directory, config, DTYPES[model.dtype])
    if in_text:
        with _collecting(refusals):
            _require_chat(directory, None if section is None else section.vocabulary_size)
    if section is None or refusals:
        raise UnsupportedModelError(*refusals)
    return section, write_policy(tensors, path, DTYPES[model.dtype])


def config_of_directory(directory: Path) -> Config:
    """Return the configuration of a directory; raises ``ValueError`` as ``section_of``."""
    return _examined(directory)[0]


def read_directory(directory: Path, precision: Precision) -> tuple[Config, dict[str, Tensor]]:
    """Return configuration and tensors of a Hugging Face directory in their stored dtype.

    They are checked as rounded to ``precision``. Raises ``ValueError`` as ``import_pretrained``.
    """
    config, _ = _examined(directory)
    return config, _weights(directory, config, DTYPES[precision])


@contextmanager
def _collecting(refusals: list[str]) -> Iterator[None]:
    """Collect the errors of a check in ``refusals``."""
    try:
        yield
    except UnsupportedModelError as error:
        refusals += error.refusals
    except ValueError as error:
        refusals.append(str(error))


def _name(directory: Path) -> str:
    """Return a model's name: its directory, or its repository in the hub's cache."""
    cached = directory.resolve()
    if cached.parent.name == "snapshots" and cached.parents[1].name.startswith("models--"):
        return cached.parents[1].name.rpartition("--")[2]
    return directory.name


def _examined(directory: Path) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration in ``config.json``, and notes on its ignored keys.

    End tokens are those of Hugging Face's ``generate``: ``generation_config.json`` wins.
    """
    values = _json(directory / "config.json")
    generation = directory / "generation_config.json"
    if generation.exists() and (ends := _json(generation).get("eos_token_id")) is not None:
        values["eos_token_id"] = ends
    return examine(str(values.get("model_type")), values)


def _require_chat(directory: Path, vocabulary_max: int | None) -> None:
    """Raise ``ValueError`` unless the directory's chat template can render a question."""
    tokenizer = HuggingFaceTokenizer(
        directory, vocabulary_max or sys.maxsize, datetime.fromtimestamp(0, UTC)
    )
    tokenizer.encode_chat("1 + 1 = ?")


def _weights(directory: Path, config: Config | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of a policy; without ``config``, all tensors of the files.

    Raises ``UnsupportedModelError``: a line per kind of fault, with the tensors' names.
    """
    tensors = dict(_tensors(directory))
    if config is not None and config.tie_word_embeddings:
        _tie(tensors)
    faults: dict[str, list[str]] = {}
    for advice, fault in _faults(tensors, config, dtype):
        faults.setdefault(advice, []).append(fault)
    refusals = []
    for advice, found in faults.items():
        more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
        refusals.append(f"weights: {', '.join(found[:_NAMED_MAX])}{more}; {advice}")
    if refusals:
        raise UnsupportedModelError(*refusals)
    return tensors


def _tie(tensors: dict[str, Tensor]) -> None:
    """Keep one of two equal tied tensors, where files hold both; keep differing ones."""
    head = tensors.get(_HEAD)
    if head is not None and torch.equal(tensors.setdefault(_EMBEDDING, head), head):
        del tensors[_HEAD]


def _faults(
    tensors: dict[str, Tensor], config: Config | None, dtype: torch.dtype
) -> Iterator[tuple[str, str]]:
    """Yield (advice, fault) for each faulty tensor."""
    shapes = {name: tuple(one.shape) for name, one in tensors.items()}
    expected = shapes if config is None else shapes_of(config)
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            yield _INCOMPLETE, f"{name} is missing"
        elif name not in expected:
            if name == _HEAD and config is not None and config.tie_word_embeddings:
                yield _UNTIED, f"{name} differs from the embedding"
            else:
                yield _OTHER_TENSORS, f"{name} is too many"
        elif shapes[name] != expected[name]:
            yield _INCOMPLETE, f"{name} has the shape {[*shapes[name]]}, not {[*expected[name]]}"
        elif tensors[name].dtype not in _DTYPES:
            yield _QUANTISED, f"{name} is of {tensors[name].dtype}"
        elif count := _infinite(tensors[name], dtype):
            of = tensors[name].numel()
            yield _DIVERGED, f"{name} is not finite in {count} of {of} values as {dtype}"


def _infinite(tensor: Tensor, dtype: torch.dtype) -> int:
    """Return how many values of a tensor are not finite after rounding to ``dtype``."""
    count = 0
    for piece in torch.split(tensor.reshape(-1), _PIECE_ELEMENTS):
        rounded = piece.to(dtype)
        # A sum is finite only if all values are; it takes a tenth of the time of ``isfinite``.
        if not torch.isfinite(rounded.sum(dtype=torch.float32)):
            count += int(torch.isfinite(rounded).logical_not().sum())
    return count


def _tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    seen: set[str] = set()
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    if name in seen:
                        raise ValueError(f"{path}: {name} is in another file, too; remove one")
                    seen.add(name)
                    if not name.endswith(_DERIVED):
                        yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} is not a readable file of tensors: {error}; {_mended(path)}"
            ) from error


def _mended(path: Path) -> str:
    """Return advice for a file without tensors."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            return "it is a Git LFS pointer: run git lfs pull in the directory"
    return "download it again"


def _files(directory: Path) -> list[Path]:
    """Return the files of the weights: a single one, or those of the index."""
    whole, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        raise ValueError(
            f"{directory} holds no {whole.name} and no {index.name}; {_instead(directory)}"
        )
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise ValueError(f"{index} has no weight_map; download it again")
    names = sorted(dict.fromkeys(places.values()))
    if any("/" in name or not name.endswith(".safetensors") for name in names):
        raise ValueError(
            f"{index} names something else than safetensors files beside it; download it again"
        )
    return [directory / name for name in names]


def _instead(directory: Path) -> str:
    """Return advice for a directory without safetensors, by its other files."""
    if (directory / "adapter_config.json").exists():
        return "it is an adapter: merge it into its model (merge_and_unload) and save that"
    for path in sorted(directory.glob("*.gguf")):
        return f"give the file: --model {path}"
    if any(directory.glob("*.bin")):
        return (
            "save it with transformers: AutoModelForCausalLM.from_pretrained(DIR)"
            ".save_pretrained(NEW)"
        )
    return "download the weights, too"


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(_JSON_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}; download it again") from None
    if not isinstance(values, dict):
        raise ValueError(  # noqa: TRY004 (a value, ours)
            f"{path} is not a table of keys; download it again"
        )
    return values
