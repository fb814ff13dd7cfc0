"""Writes a recipe or a signed manifest as TOML that loads again with the same digest."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from protocol.manifest import SignedManifest
from protocol.recipe import Recipe

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def recipe_toml(recipe: Recipe) -> str:
    """Return the TOML of a recipe; ``protocol.manifest.load_recipe`` reads it back unchanged."""
    return "\n".join(_table(recipe.model_dump(), ())).strip() + "\n"


def manifest_toml(signed: SignedManifest) -> str:
    """Return the TOML of a manifest; ``load_signed_manifest`` reads it back with its run id."""
    values = {"signature": signed.signature.hex()} | signed.manifest.model_dump()
    return "\n".join(_table(values, ())).strip() + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its own values before its sub-tables, as TOML needs it."""
    if path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _table(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case tuple() | list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"TOML has no {type(value).__name__}")


def _string(text: str) -> str:
    # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
