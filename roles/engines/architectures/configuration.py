"""Model configuration: every key is supported, has no effect, or is rejected.

Unknown keys are not dropped. A model with another window, scaling or quantisation computes other
numbers, and every rollout of an honest worker would be rejected. Keys without effect are ignored
and listed in notes. All rejections are reported together.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from typing_extensions import override

from roles.engines.architectures.architecture import (
    Architecture,
    Config,
    head_size,
    key_heads,
    scales_of,
)
from roles.engines.architectures.keys import ADVICE, COMPUTED, ONLY_AS, WINDOWS, WITHOUT_EFFECT
from roles.engines.architectures.registry import architecture_of
from roles.engines.architectures.rope import set_rope
from roles.engines.architectures.unsupported import UNSUPPORTED


class UnsupportedModelError(ValueError):
    """A model that the engines do not support: one line per reason, with advice."""

    def __init__(self, *refusals: str) -> None:
        super().__init__(*refusals)
        self.refusals = refusals

    @override
    def __str__(self) -> str:
        return "; ".join(self.refusals)


_FULL = "full_attention"

_WINDOW_REFUSAL = (
    "config.sliding_window: sliding windows are not supported; use a model without windows"
)

_SHORTER = ", or set max_position_embeddings to the window: shorter sequences are computed alike"
"""Advice for a model with one window in all layers."""

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
"""Ten times the layers of published models; Hugging Face allocates a list of this length."""


def configuration(architecture: str, values: Mapping[str, Any]) -> Config:
    """Return Hugging Face's configuration of ``values``, the keys of a ``config.json``.

    Raises ``UnsupportedModelError`` with a line for each unsupported key.
    """
    return examine(architecture, values)[0]


def examine(architecture: str, values: Mapping[str, Any]) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration, and notes on the keys of ``values`` that are ignored.

    Raises ``UnsupportedModelError`` as ``configuration``.
    """
    made = _architecture(architecture)
    own = {"model_type": (architecture,), "architectures": _classes(made, values)}
    only_as: dict[str, tuple[object, ...]] = {**ONLY_AS, **own}
    given = {key: _lists(value) for key, value in values.items()}
    arguments, ignored, notes, refusals = {}, [], [], []
    for key, value in given.items():
        if key in COMPUTED | made.computed:
            arguments[key] = value
        elif key in only_as:
            if not any(value == allowed for allowed in only_as[key]):
                refusals.append(_refusal(key, value, only_as[key]))
        elif key in WITHOUT_EFFECT:
            ignored.append(key)
        elif _is_empty(value) or _is_idle_window(key, given):
            notes.append(f"config.{key}: {value!r:.60} is ignored, {architecture} has no such key")
        else:
            refusals.append(_unknown(key, value, architecture))
    if ignored:
        notes.append(f"config: no effect on the computation: {', '.join(sorted(ignored))}")
    notes += set_rope(arguments, refusals, made.config.default_theta)
    notes += _set_window(made, arguments)
    config = _made(made, arguments, refusals)
    if config is None or refusals:
        raise UnsupportedModelError(*dict.fromkeys(refusals))
    return config, tuple(notes)


def explicit(config: Config) -> dict[str, Any]:
    """Return all values that affect the computation, as JSON; none is left to a default."""
    computed = COMPUTED | architecture_of(config.model_type).computed
    keys = sorted(computed - WINDOWS - {"rope_theta", "rope_scaling", "rope_parameters"})
    values = {key: getattr(config, key) for key in keys if hasattr(config, key)}
    if _has_one_window(config):
        # Hugging Face defaults to a window; one as long as the longest sequence has no effect.
        values["sliding_window"] = config.max_position_embeddings
    return values | {"rope_parameters": dict(config.rope_parameters or {})}


def _has_one_window(config: Config | type[Config]) -> bool:
    """Return whether one window applies to all layers, as in Mistral."""
    return hasattr(config, "sliding_window") and not hasattr(config, "layer_types")


def _set_window(made: Architecture, arguments: dict[str, Any]) -> list[str]:
    """Drop the window of all layers if no sequence is longer; return notes."""
    window, positions = (
        arguments.get(key, getattr(made.config, key, None))
        for key in ("sliding_window", "max_position_embeddings")
    )
    if not _has_one_window(made.config) or type(window) is not int or type(positions) is not int:
        return []
    if window < positions:
        return []
    arguments["sliding_window"] = None
    return [f"config.sliding_window: {window} is ignored, no sequence has more positions"]


def _architecture(name: str) -> Architecture:
    if name in UNSUPPORTED:
        own = UNSUPPORTED[name]
        raise UnsupportedModelError(
            f"architecture {name!r}: {own.feature} not supported; use another model, the "
            f"nearest architecture is {own.nearest}"
        )
    try:
        return architecture_of(name)
    except ValueError as error:
        raise UnsupportedModelError(f"{error}; use a model of one of these") from None


def _classes(made: Architecture, values: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the values of ``architectures`` that mean the class of ``made``."""
    name = made.model_name
    own = values.get("architectures")
    same = isinstance(own, list) and [str(one).lower() for one in own] == [name.lower()]
    return ([name], [], None, *([own] if same else []))


def _refusal(key: str, value: object, allowed: tuple[object, ...]) -> str:
    computed = " or ".join(json.dumps(one) for one in allowed)
    advice = ADVICE.get(key, f"use a model that has {computed} there")
    return f"config.{key}: {value!r:.80} is not supported; {advice}"


def _unknown(key: str, value: object, architecture: str) -> str:
    if key in WINDOWS:
        return _WINDOW_REFUSAL
    return (
        f"config.{key}: {value!r:.80} is no key of {architecture} and may change the computation; "
        "remove it only if Hugging Face computes the same without it"
    )


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _is_idle_window(key: str, given: Mapping[str, Any]) -> bool:
    """Return whether a window key has no effect in an architecture without windows."""
    if key == "layer_types":
        return isinstance(given[key], list) and all(kind == _FULL for kind in given[key])
    if key == "sliding_window":
        return given.get("use_sliding_window") is False
    return key == "max_window_layers"


def _made(made: Architecture, arguments: dict[str, Any], refusals: list[str]) -> Config | None:
    """Return Hugging Face's configuration; add its errors to ``refusals``."""
    layers = arguments.get("num_hidden_layers")
    if type(layers) is int and layers > _LAYERS_MAX:
        refusals.append(
            f"config.num_hidden_layers must not exceed {_LAYERS_MAX}; use a model with fewer"
        )
        return None
    turning = arguments.get("no_rope_layers")
    if isinstance(turning, list) and (
        len(turning) != layers or not all(type(one) is int and one in {0, 1} for one in turning)
    ):
        refusals.append("config.no_rope_layers must have a 0 or a 1 for each layer; correct it")
        return None
    try:
        # A default of these may exceed the vocabulary, and a padding token is not trained.
        config = made.config(**arguments, pad_token_id=None, bos_token_id=None)
        refusals += _faults(config)
    except (StrictDataclassError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        refusals.append(f"config: {reason}; correct the value in config.json")
        return None
    return config


def _faults(config: Config) -> Iterator[str]:
    """Yield faults of the shape that Hugging Face derived from the values."""
    wrong = [key for key in _SIZES if getattr(config, key) < 1]
    yield from (f"config.{key} must be positive; correct it" for key in wrong)
    if getattr(config, "head_dim", 2) is None or head_size(config) % 2:
        yield "config.head_dim must be an even number; correct it"
    if not wrong and config.num_attention_heads % key_heads(config):
        yield "config.num_key_value_heads must divide the heads; correct it"
    kinds = set(getattr(config, "layer_types", None) or ())
    if "sliding_attention" in kinds:
        yield _WINDOW_REFUSAL
    for kind in sorted(kinds - {_FULL, "sliding_attention"}):
        yield f"config.layer_types: {kind!r:.80} is not supported; use a model of full attention"
    if _has_one_window(config) and config.sliding_window is not None:
        yield _WINDOW_REFUSAL + _SHORTER
    for name, factor in asdict(scales_of(config)).items():
        if factor is not None and not 0 < factor < math.inf:
            yield f"config: the factor of {name}, {factor}, is no number above 0; correct it"
    if config.eos_token_id is None:
        yield (
            "config.eos_token_id: a model needs a token that ends a sequence; write its id into "
            "config.json"
        )


def _lists(value: Any) -> Any:
    """Copy sequences to lists: Hugging Face requires lists and may modify them."""
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
