"""Recipes as TOML: parsing, and one-line errors that name the first wrong key."""

import re
import tomllib
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ValidationError,
)

from protocol.run.recipe import _KEY_PART, Recipe

_Model = TypeVar("_Model", bound=BaseModel)


KEY_PARTS_MAX = 16
"""Maximum parts of a dotted key: a recipe's deepest has five. tomllib's memory grows with the
square of the number, 4 GB for 64 KB of text."""


_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}){{{KEY_PARTS_MAX}}}")


class ManifestError(ValueError):
    """An invalid manifest; the message is one line and names the key."""


def load_recipe(text: str) -> Recipe:
    """Parse the TOML of a recipe; raises ``ManifestError`` naming the first wrong key."""
    return validated(Recipe, parsed(text))


def parsed(text: str) -> dict[str, Any]:
    """Return the values of a TOML text; raises ``ManifestError``."""
    if _LONG_KEY.search(text):
        raise ManifestError(f"not TOML: a key of more than {KEY_PARTS_MAX} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of 5000 digits
        raise ManifestError(f"not TOML: {error}") from None


def validated(model: type[_Model], values: dict[str, Any]) -> _Model:
    """Return TOML values as a ``model``; raises ``ManifestError`` naming the first wrong key."""
    try:
        return model.model_validate(_tuples(values))
    except ValidationError as error:
        raise ManifestError(first_error(error)) from None
    except RecursionError:
        raise ManifestError("tables within tables, too many") from None


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def first_error(error: ValidationError, whole: str = "manifest") -> str:
    """Return pydantic's first error in one line that names the key, or the ``whole``."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # A misspelt required key is both missing and unknown: the unknown one helps its author more.
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    key = ".".join(str(part) for part in first["loc"]) or whole
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}"
