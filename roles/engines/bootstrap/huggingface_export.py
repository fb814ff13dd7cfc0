"""Export of policies to Hugging Face directories, the inverse of ``huggingface_import``.

Tensors keep Hugging Face's names. The digest is computed from the written tensors, so a complete
directory holds the policy bit for bit.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.core.crypto import TensorEntry, policy_digest
from protocol.core.types import Digest
from protocol.run.recipe import ModelSection
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.registry import architecture_of
from roles.engines.files.atomic_write import replacing
from roles.engines.files.policy import DTYPES
from roles.engines.files.safetensors import write_tensors

SHARD_BYTES_MAX = 5 * 10**9
"""Maximum tensor bytes per file, as transformers 4 writes models; every loader supports shards."""

_WHOLE, _PART = "model.safetensors", "model-{:05d}-of-{:05d}.safetensors"
_INDEX = "model.safetensors.index.json"

_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def export_weights(
    policy: Path, digest: Digest, directory: Path, shard_bytes_max: int = SHARD_BYTES_MAX
) -> int:
    """Write the tensors of a policy's file to ``directory``; return their bytes.

    Writes one file, or several and an index above ``shard_bytes_max``. Raises ``ValueError`` for a
    file that is unreadable or holds another policy than ``digest``; ``StorageFullError``.
    """
    tensors = _tensors(policy)
    parts = [*_packed(tensors, shard_bytes_max)]
    entries: list[TensorEntry] = []
    places: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        name = _WHOLE if len(parts) == 1 else _PART.format(number, len(parts))
        with replacing(directory / name) as partial:
            entries += write_tensors(partial, part, metadata={"format": "pt"})
        places |= dict.fromkeys(part, name)
    if (found := policy_digest(entries)) != digest:
        raise ValueError(f"{policy} holds the policy {found.hex()}, not {digest.hex()}")
    total_bytes = sum(map(_bytes, tensors.values()))
    if len(parts) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
        with replacing(directory / _INDEX) as partial:
            partial.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return total_bytes


def config_of(model: ModelSection, published: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a model's ``config.json``, based on the ``published`` one if there is one.

    The dtype is the policy's; transformers and vLLM load in it.
    """
    if published is None:
        config = configuration(model.architecture, model.config)
        published = json.loads(config.to_json_string())
    dtype = str(DTYPES[model.dtype]).removeprefix("torch.")
    values = {
        **published,
        "architectures": [architecture_of(model.architecture).model_name],
        "dtype": dtype,
    }
    if "torch_dtype" in values:  # the key's older name
        values["torch_dtype"] = dtype
    return values


def generation_config_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``generation_config.json`` with the special tokens of a ``config.json``."""
    return {key: config[key] for key in _SPECIAL_TOKENS if config.get(key) is not None}


def _tensors(policy: Path) -> dict[str, Tensor]:
    """Return a file's tensors, memory-mapped: they remain valid after the file is unlinked."""
    try:
        with safe_open(policy, framework="pt") as file:
            return {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{policy} is not a readable file of tensors: {error}") from error


def _packed(tensors: Mapping[str, Tensor], bytes_max: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in files of at most ``bytes_max``, unless a single one is larger."""
    part: dict[str, Tensor] = {}
    part_bytes = 0
    for name, tensor in tensors.items():
        if part and part_bytes + _bytes(tensor) > bytes_max:
            yield part
            part, part_bytes = {}, 0
        part[name] = tensor
        part_bytes += _bytes(tensor)
    yield part


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize
