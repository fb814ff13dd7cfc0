"""Reference of recipe keys: meaning, type, limits and default of each.

Meanings are the docstrings of sections and fields, read from the source only for commands that need
them: pydantic's ``use_attribute_docstrings`` would take 35 ms in every process. Types and limits
come from the sections' JSON schema.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from node.founding.equivalents import EQUIVALENTS
from protocol.run.recipe import Recipe
from protocol.run.sections import HonestValue, RecipeModel

LARGE = 2**20
"""Limits from this value on are written as powers of two."""

_TYPES = {
    "array": "list",
    "boolean": "true or false",
    "integer": "integer",
    "number": "number",
    "object": "table",
    "string": "text",
}


@dataclass(frozen=True, slots=True)
class RecipeKey:
    """Key of a recipe. ``default`` and ``example`` are TOML values, None if absent."""

    path: tuple[str, ...]
    meaning: str
    type: str
    constraints: str
    required: bool
    default: Any
    example: Any
    """Example of an optional key without a default."""

    @property
    def name(self) -> str:
        """Dotted path."""
        return ".".join(self.path)

    def value_in(self, values: Mapping[str, Any]) -> Any:
        """Return the key's value in a recipe, None if omitted."""
        found: Any = values
        for name in self.path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """Names of the key in other trainers."""
        return EQUIVALENTS.get(self.name, {})


@dataclass(frozen=True, slots=True)
class RecipeTable:
    """Table of a recipe, with its keys and subtables."""

    path: tuple[str, ...]
    meaning: str
    keys: tuple[RecipeKey, ...]
    tables: tuple["RecipeTable", ...]

    def every_key(self) -> Iterator[RecipeKey]:
        """Yield its keys and those of its subtables."""
        yield from self.keys
        for table in self.tables:
            yield from table.every_key()


def recipe_table() -> RecipeTable:
    """Return the root table of recipes."""
    schema = Recipe.model_json_schema()
    return _table(Recipe, {**schema["$defs"], Recipe.__name__: schema}, ())


def attribute_docstrings(section: type[RecipeModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a section."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    found = {}
    for pair in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        match pair:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = _prose(text)
    return found


def _table(
    section: type[RecipeModel], schemas: Mapping[str, Mapping[str, Any]], path: tuple[str, ...]
) -> RecipeTable:
    properties = schemas[section.__name__]["properties"]
    meanings = attribute_docstrings(section)
    keys, tables = [], []
    for name, field in section.model_fields.items():
        inner = _section_of(field)
        if inner is not None and inner is not HonestValue:
            tables.append(_table(inner, schemas, (*path, name)))
            continue
        found = _plain(properties[name])
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        options = [*found.get("examples", ()), *found.get("enum", ())]
        keys.append(
            RecipeKey(
                path=(*path, name),
                meaning=meanings.get(name, ""),
                type=_type(found),
                constraints=_constraints(found, schemas),
                required=field.is_required(),
                default=list(default) if isinstance(default, tuple) else default,
                example=options[0] if options else None,
            )
        )
    return RecipeTable(path, _prose(section.__doc__ or ""), tuple(keys), tuple(tables))


def _section_of(field: FieldInfo) -> type[RecipeModel] | None:
    kind = field.annotation
    kinds = (kind, *(get_args(kind) if get_origin(kind) in {Union, UnionType} else ()))
    found = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, RecipeModel))
    return next(found, None)


def _prose(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())


def _plain(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without the option null, which TOML lacks."""
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return {**schema, **options[0]} if options else schema


def _type(schema: Mapping[str, Any]) -> str:
    return _TYPES[schema.get("type", "object")]


def _constraints(schema: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the limits of a value in words; empty without limits."""
    if "$ref" in schema:
        properties = schemas[schema["$ref"].rpartition("/")[2]]["properties"]
        return f"with {', '.join(properties)}"
    if "enum" in schema:
        return " or ".join(f'"{option}"' for option in schema["enum"])
    items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
    each = _constraints(items, schemas) if items else ""
    limits = (
        _range(schema, "minimum", "maximum", ""),
        _range(schema, "minLength", "maxLength", " characters"),
        _range(schema, "minItems", "maxItems", " items"),
        _range(schema, "minProperties", "maxProperties", " entries"),
        f"matching {schema['pattern']}" if "pattern" in schema else "",
        f"each {each}" if each else "",
    )
    return ", ".join(limit for limit in limits if limit)


def _range(schema: Mapping[str, Any], least: str, most: str, unit: str) -> str:
    low, above, high = schema.get(least), schema.get("exclusiveMinimum"), schema.get(most)
    if high is None and least == "minimum" and "exclusiveMaximum" in schema:
        return f"{low} to below {_number(schema['exclusiveMaximum'])}"
    if high is None:
        return ""
    if least == "minimum" and above is not None:
        return f"above {above}, at most {_number(high)}"
    if low == high:
        return f"{high}{unit}"
    return f"up to {high}{unit}" if low is None else f"{low} to {_number(high)}{unit}"


def _number(value: float) -> str:
    """Return a limit as text, a large power of two as ``2^n``."""
    bits = int(value).bit_length() - 1
    return f"2^{bits}" if value >= LARGE and value == 2**bits else f"{value}"
