"""Rotary position embeddings: convert all of Hugging Face's spellings to one validated table."""

import math
from collections.abc import Mapping
from typing import Any

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
"""Supported kinds of rotary embeddings and their parameters. ``dynamic`` and ``longrope`` are
unsupported: their angles depend on the batch's longest sequence, so honest engines differ."""


def set_rope(arguments: dict[str, Any], refusals: list[str], default_theta: float) -> list[str]:
    """Convert all spellings of the rotary embedding to a validated ``rope_parameters``.

    ``default_theta`` is Hugging Face's ``rope_theta`` for a file without one. Adds errors to
    ``refusals``; returns notes.
    """
    theta = arguments.pop("rope_theta", None)
    given = {key: arguments.pop(key, None) for key in ("rope_scaling", "rope_parameters")}
    ropes = []
    for key, table in given.items():
        if not table:
            continue
        try:
            ropes.append(_rope_table(table))
        except ValueError as error:
            refusals.append(f"{error}; use a model with default, linear, llama3 or yarn positions")
        else:
            if theta is not None and ropes[-1].setdefault("rope_theta", theta) != theta:
                refusals.append(
                    f"config.rope_theta is given twice, with different values: {theta} and "
                    f"{ropes[-1]['rope_theta']} in {key}; keep that which it was trained with"
                )
    default = {} if theta is None else {"rope_theta": theta}
    arguments["rope_parameters"] = ropes[0] if ropes else {"rope_type": "default", **default}
    for key, value in arguments["rope_parameters"].items():
        if not _is_fit(key, value):
            refusals.append(
                f"config.rope_parameters.{key}: {value!r:.80} is no number above 0 (true or false "
                "for truncate); correct it"
            )
    if len(ropes) < len(given):
        return []
    one, other = ({"rope_theta": default_theta} | rope for rope in ropes)
    if one != other:
        refusals.append(
            "config.rope_scaling and config.rope_parameters differ; keep that which it was "
            "trained with"
        )
    return ["config.rope_scaling repeats config.rope_parameters and is ignored"]


def _rope_table(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("config.rope_parameters is not a table")  # noqa: TRY004 (a value, ours)
    # Hugging Face treats null like an absent number.
    rope = {key: value for key, value in given.items() if value is not None}
    kinds = [rope.pop(key) for key in ("rope_type", "type") if key in rope] or ["default"]
    kind = kinds[0]
    if type(kind) is not str or kind not in _ROPE_KEYS or kinds[-1] != kind:
        raise ValueError(f"config.rope_parameters.rope_type: {kinds!r:.80} is not supported")
    rope.pop("finetuned", None)  # of old YaRN models; unused
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
