"""Conversion of GGUF files to Hugging Face directories, by transformers' reader.

The reader drops unknown keys and tensors, such as the scaling of positions. A file with any of them
is rejected, because the result would be another model.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from roles.engines.architectures.architecture import Config
from roles.engines.architectures.configuration import UnsupportedModelError
from roles.engines.files.policy import DTYPES, Precision
from roles.engines.files.safetensors import write_tensors

_READ = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
    }
)
"""Keys of an architecture that reach the configuration, or are checked here."""

_HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")
"""Keys that must agree: engines rotate whole heads, and all parts of a head have one size."""

_ARCHITECTURES = ("qwen2", "qwen3", "llama")
"""Architectures compared with transformers' own conversion."""

_POSITIONS = "rope_freqs.weight"
"""The tensor by which llama.cpp scales the positions of Llama 3.1 and later."""

_DROPPED = "transformers drops it, and the model would be another; use the model's safetensors"

_PRE_TOKENIZER, _TOKENS = "tokenizer.ggml.pre", "tokenizer.ggml.tokens"


def convert_gguf(path: Path, directory: Path, precision: Precision) -> tuple[str, ...]:
    """Convert a GGUF file to a Hugging Face directory in ``precision``; return notes.

    Raises ``ValueError`` for an unreadable file or missing optional packages, and
    ``UnsupportedModelError`` for anything that transformers would drop.
    """
    values = _checked(path)
    with tempfile.TemporaryDirectory(prefix="prime-node-gguf-") as folder:
        # Alone in a directory: transformers would read a tokenizer.json next to it.
        alone = Path(folder) / "model.gguf"
        alone.symlink_to(path.resolve())
        try:
            _convert(alone, directory, precision, values)
        except Exception as error:  # tokenizers raises the base class
            raise ValueError(f"{path} cannot be converted: {_line(error)}") from error
    rebuilt = (
        f"the tokenizer is rebuilt from the file, which splits text as "
        f"{values.get(_PRE_TOKENIZER, 'default')!r}; compare it with the model's own if you have it"
    )
    return f"{path.name}: weights are dequantised to {precision}", f"{path.name}: {rebuilt}"


def _checked(path: Path) -> dict[str, Any]:
    """Return a file's short values by key; keys of its architecture lose that prefix."""
    try:
        import accelerate  # noqa: F401, PLC0415 - optional; transformers requires it
        from gguf import GGUFReader  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ValueError(
            f"{path} is a GGUF file, and reading it takes more packages ({error}): "
            "pip install 'prime-node[gguf]'"
        ) from None
    try:
        reader = GGUFReader(path)
        values = {
            key: field.contents()
            for key, field in reader.fields.items()
            if not key.startswith("tokenizer.") or key == _PRE_TOKENIZER
        }
        if _TOKENS in reader.fields:
            values[_TOKENS] = len(reader.fields[_TOKENS].data)
    except (LookupError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} is not a readable GGUF file: {_line(error)}; download it again"
        ) from None
    name = str(values.get("general.architecture"))
    own = {key.removeprefix(f"{name}."): value for key, value in values.items()}
    refusals = [*_refusals(name, own, (tensor.name for tensor in reader.tensors))]
    if refusals:
        raise UnsupportedModelError(*(f"{path.name}: {one}" for one in refusals))
    return own


def _refusals(name: str, values: Mapping[str, Any], tensors: Iterable[str]) -> Iterator[str]:
    if name not in _ARCHITECTURES:
        yield f"architecture {name!r} is not supported, only {', '.join(_ARCHITECTURES)}"
        return
    if values.get("split.count", 1) != 1:
        yield "it is one of several parts; join them with llama-gguf-split --merge"
    if _POSITIONS in tensors:
        yield f"{_POSITIONS}: {_DROPPED}"
    shared = ("GGUF.", "general.", "quantize.", "split.", "tokenizer.")
    for key, value in values.items():
        unscaled = key == "rope.scaling.type" and value == "none"
        if not key.startswith(shared) and key not in _READ and not unscaled:
            yield f"{name}.{key}: {value!r:.80}: {_DROPPED}"
    sizes = {key: values[key] for key in _HEAD_SIZES if key in values}
    if len({str(size) for size in sizes.values()}) > 1:
        yield f"heads of several sizes are not supported: {sizes}; use another model"


def _convert(alone: Path, directory: Path, precision: Precision, values: Mapping[str, Any]) -> None:
    from transformers import (  # noqa: PLC0415 - takes seconds
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    folder, gguf_file = alone.parent, alone.name
    config = AutoConfig.from_pretrained(folder, gguf_file=gguf_file)
    sizes = [values[key] for key in _HEAD_SIZES if key in values]
    if sizes:
        # For some architectures transformers omits it and uses a default.
        config.head_dim = sizes[0]
    dtype = DTYPES[precision]
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_file, config=config, dtype=dtype
    )
    directory.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file).save_pretrained(directory)
    _leave_out_defaults(directory / "tokenizer.json", values.get(_TOKENS, 0))
    (directory / "config.json").write_text(json.dumps(_published(config, model, dtype), indent=2))
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    write_tensors(directory / "model.safetensors", tensors, dtype, {"format": "pt"})


def _leave_out_defaults(path: Path, tokens: int) -> None:
    """Drop the token that transformers adds by default for unknown tokens.

    It exceeds the model's vocabulary, and a byte-level tokenizer never needs it.
    """
    values = json.loads(path.read_bytes())
    values["added_tokens"] = [one for one in values["added_tokens"] if one["id"] < tokens]
    path.write_bytes(json.dumps(values, ensure_ascii=False).encode())


def _published(config: Config, model: nn.Module, dtype: object) -> dict[str, Any]:
    """Return ``config.json`` as the model's authors would write it."""
    values = config.to_diff_dict() | {
        "architectures": [type(model).__name__],
        "dtype": str(dtype).removeprefix("torch."),
    }
    # Quantisation, the source path, and a name.
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        values.pop(key, None)
    return {key: _shortest(value) for key, value in values.items()}


def _shortest(value: Any) -> Any:
    """Return float32 values with the fewest digits that identify them."""
    if isinstance(value, dict):
        return {key: _shortest(item) for key, item in value.items()}
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
