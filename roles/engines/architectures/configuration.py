"""A model's configuration: every key is computed, is known to change nothing, or is refused.

Never is a key dropped because nobody knows it: a model with another window, another scaling or
quantised weights computes other numbers, and every rollout of an honest worker would be rejected.
"""

import math
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from roles.engines.architectures.architecture import Config, head_size, key_heads
from roles.engines.architectures.registry import architecture_of

COMPUTED = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "tie_word_embeddings",
        "initializer_range",
        "eos_token_id",
    }
)
"""Keys that every architecture computes with; each adds its own."""

WITHOUT_EFFECT = frozenset(
    {
        # Who wrote the file, and how.
        "transformers_version",
        "torch_dtype",
        "dtype",
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
        "tokenizer_class",
        "unsloth_version",
        "unsloth_fixed",
        "is_llama_config",
        "transformers.js_config",
        # How Hugging Face's module is called; the engines call it in their own way.
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "torchscript",
        "use_bfloat16",
        "tf_legacy_loss",
        "is_decoder",
        "_attn_implementation_autoset",
        # Tokens that the engines are given, or that end nothing.
        "bos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "prefix",
        # Other tasks than the next token.
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        # Sampling is the manifest's.
        "max_length",
        "min_length",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "num_beams",
        "num_return_sequences",
    }
)

_ONLY_AS: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_dropout": (0, None),
    "pretraining_tp": (1, None),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "use_mrope": (False, None),
    "quantization_config": (None,),
    "compression_config": (None,),
    "per_layer_config": (None,),
    "auto_map": (None,),
    "chunk_size_feed_forward": (0,),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
}
"""Keys that change nothing as long as they have one of these values."""

_WINDOWS = frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})
"""What Hugging Face derives each layer's kind of attention from."""

_ROPE_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        }
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}
"""Kinds of rotary position embeddings and their numbers. ``dynamic`` and ``longrope`` are not among
them: their angles depend on the longest sequence of a batch, so two honest engines differ."""

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)

_LAYERS_MAX = 4096
"""Ten times what published models have. Hugging Face makes a list of them, however many."""


def configuration(architecture: str, values: Mapping[str, Any]) -> Config:
    """Return Hugging Face's configuration of what ``values`` say.

    Raises ``ValueError``, one line that names the key, for what the engines do not compute.
    """
    made = architecture_of(architecture)
    computed = COMPUTED | made.computed
    only_as: dict[str, tuple[object, ...]] = {
        **_ONLY_AS,
        "model_type": (architecture,),
        "architectures": ([made.model.__name__], None),
    }
    for key, value in values.items():
        if key in only_as:
            if not any(_lists(value) == allowed for allowed in only_as[key]):
                raise ValueError(f"config.{key}: {value!r:.80} is not supported")
        elif key not in computed | WITHOUT_EFFECT:
            raise ValueError(f"config.{key} is not a key of {architecture} that is supported")
    arguments = {key: _lists(value) for key, value in values.items() if key in computed}
    _set_rope(arguments)
    layers = arguments.get("num_hidden_layers")
    if type(layers) is int and layers > _LAYERS_MAX:
        raise ValueError(f"config.num_hidden_layers must not exceed {_LAYERS_MAX}")
    try:
        config: Config = made.config(**arguments)
    except (StrictDataclassError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"config: {' '.join(str(error).split())}") from None
    _check(config)
    return config


def explicit(config: Config) -> dict[str, Any]:
    """Return all that ``config`` computes with, as JSON values; nothing is left to a default."""
    computed = COMPUTED | architecture_of(config.model_type).computed
    keys = sorted(computed - _WINDOWS - {"rope_theta", "rope_scaling", "rope_parameters"})
    values = {key: getattr(config, key) for key in keys if hasattr(config, key)}
    return values | {"rope_parameters": dict(config.rope_parameters or {})}


def _set_rope(arguments: dict[str, Any]) -> None:
    """Put all spellings of the rotary embedding into ``rope_parameters``, checked."""
    tables = [arguments.pop(key, None) for key in ("rope_scaling", "rope_parameters")]
    given = [table for table in tables if table]
    if len(given) > 1:
        raise ValueError("config.rope_scaling and config.rope_parameters are both given")
    rope = _rope_table(given[0]) if given else {"rope_type": "default"}
    theta = arguments.pop("rope_theta", None)
    if theta is not None and rope.setdefault("rope_theta", theta) != theta:
        raise ValueError("config.rope_theta is given twice, with different values")
    for key, value in rope.items():
        if not _is_fit(key, value):
            raise ValueError(f"config.rope_parameters.{key}: {value!r:.80} is not supported")
    arguments["rope_parameters"] = rope


def _rope_table(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("config.rope_parameters is not a table")  # noqa: TRY004 (a value, ours)
    # Hugging Face reads an absent number and one that is null alike.
    rope = {key: value for key, value in given.items() if value is not None}
    kinds = [rope.pop(key) for key in ("rope_type", "type") if key in rope] or ["default"]
    kind = kinds[0]
    if type(kind) is not str or kind not in _ROPE_KEYS or kinds[-1] != kind:
        raise ValueError(f"config.rope_parameters.rope_type: {kinds!r:.80} is not supported")
    if rope.get("partial_rotary_factor") == 1:
        del rope["partial_rotary_factor"]
    for key in rope:
        if key not in _ROPE_KEYS[kind] | {"rope_theta"}:
            raise ValueError(f"config.rope_parameters.{key} is not supported with {kind!r}")
    return {"rope_type": kind, **rope}


def _is_fit(key: str, value: Any) -> bool:
    if key in {"rope_type", "truncate"}:
        return type(value) is (bool if key == "truncate" else str)
    return type(value) in {int, float} and 0 < value < math.inf


def _check(config: Config) -> None:
    """Check the shape that Hugging Face has taken the values for."""
    for key in _SIZES:
        if getattr(config, key) < 1:
            raise ValueError(f"config.{key} must be positive")
    if getattr(config, "head_dim", 2) is None or head_size(config) % 2:
        raise ValueError("config.head_dim must be an even number")
    if config.num_attention_heads % key_heads(config):
        raise ValueError("config.num_key_value_heads must divide the heads")
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", ())):
        raise ValueError("config.sliding_window: attention in windows is not supported")
    if config.eos_token_id is None:
        raise ValueError("config.eos_token_id: a model needs a token that ends a sequence")


def _lists(value: Any) -> Any:
    """Return a copy whose sequences are lists, as Hugging Face wants them and may change them."""
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
