"""Published models: a Hugging Face directory becomes a manifest's model and the policy of a run.

Weights are read from safetensors alone, because the other formats run code. A file's tensors are
its pages: only what has another dtype is copied, and one copy of each tensor is all there is.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.recipe import ModelSection, validated
from protocol.types import Digest
from roles.engines.architectures.architecture import Config
from roles.engines.architectures.configuration import configuration, explicit
from roles.engines.architectures.model import shapes_of
from roles.engines.builtin.policy import DTYPES, Precision, write_policy

_JSON_BYTES_MAX = 16 * 1024 * 1024
"""A guess: the index of a model with thousands of tensors takes a few hundred thousand."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What holds plain weights; others are of quantised ones."""

_DERIVED = ".rotary_emb.inv_freq"
"""Old files hold these angles, which follow from the configuration; Hugging Face leaves them."""

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"

_NAMED_MAX = 5


def section_of(directory: Path, section: ModelSection) -> ModelSection:
    """Return the model of a Hugging Face directory, in the precisions that ``section`` asks for.

    Raises ``ValueError``, one line that names the key, for what the engines do not compute.
    """
    config = _configuration(directory)
    values = {
        "name": directory.name,
        "architecture": config.model_type,
        "config": explicit(config),
        "dtype": section.dtype,
        "head": section.head,
    }
    return validated(ModelSection, values)


def import_pretrained(directory: Path, path: Path, precision: Precision) -> Digest:
    """Write the policy of a Hugging Face directory; ``path`` gets one safetensors file.

    Raises ``ValueError`` as ``section_of``, and for tensors that are missing, too many or wrong, by
    their names; ``StorageFullError`` as ``write_policy``.
    """
    config = _configuration(directory)
    tensors = dict(_tensors(directory))
    if config.tie_word_embeddings:
        _tie(tensors)
    wrong = list(_faults(tensors, config))
    if wrong:
        more = f" and {len(wrong) - _NAMED_MAX} more" if len(wrong) > _NAMED_MAX else ""
        raise ValueError(f"{directory}: {', '.join(wrong[:_NAMED_MAX])}{more}")
    return write_policy(tensors, path, DTYPES[precision])


def _configuration(directory: Path) -> Config:
    """Return what ``config.json`` says, with the end tokens of ``generate`` in Hugging Face.

    Those of ``generation_config.json`` win.
    """
    values = _json(directory / "config.json")
    generation = directory / "generation_config.json"
    if generation.exists() and (ends := _json(generation).get("eos_token_id")) is not None:
        values["eos_token_id"] = ends
    return configuration(str(values.get("model_type")), values)


def _tie(tensors: dict[str, Tensor]) -> None:
    """Keep one of two equal tensors, which some files hold both; leave what contradicts."""
    head = tensors.get(_HEAD)
    if head is not None and torch.equal(tensors.setdefault(_EMBEDDING, head), head):
        del tensors[_HEAD]


def _faults(tensors: dict[str, Tensor], config: Config) -> Iterator[str]:
    shapes = shapes_of(config)
    for name in sorted(shapes.keys() | tensors.keys()):
        if name not in tensors:
            yield f"{name} is missing"
        elif name not in shapes:
            tied = name == _HEAD and config.tie_word_embeddings
            yield f"{name} differs from the embedding" if tied else f"{name} is too many"
        elif tuple(tensors[name].shape) != shapes[name]:
            yield f"{name} has the shape {list(tensors[name].shape)}, not {list(shapes[name])}"
        elif tensors[name].dtype not in _DTYPES:
            yield f"{name} is of {tensors[name].dtype}"


def _tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    seen: set[str] = set()
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    if name in seen:
                        raise ValueError(f"{path}: {name} is in another file, too")
                    seen.add(name)
                    if not name.endswith(_DERIVED):
                        yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a readable file of tensors: {error}") from error


def _files(directory: Path) -> list[Path]:
    """Return the files of the weights: one, or those that an index names."""
    whole, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        raise ValueError(f"{directory} holds no {whole.name} and no {index.name}")
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise ValueError(f"{index} has no weight_map")
    names = sorted(dict.fromkeys(places.values()))
    if any("/" in name or not name.endswith(".safetensors") for name in names):
        raise ValueError(f"{index} names something else than safetensors files beside it")
    return [directory / name for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(_JSON_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a table")  # noqa: TRY004 (a value, ours)
    return values
