"""Annotated TOML of a recipe: each key with its meaning, including omitted keys.

The text loads as the same recipe and keeps the values with their trailing comments.
"""

import textwrap
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AbstractTable, AoT, InlineTable, Item

from node.founding.recipe_keys import RecipeKey, RecipeTable, recipe_table

WIDTH = 100

NOTE = (
    "Each key has its meaning, then its type, limits and default, then its names in other "
    "trainers. A line such as #key = value is a key that the recipe leaves out, with its default "
    "or an example: remove the # to set it."
)


def explained_toml(text: str) -> str:
    """Return the TOML of a valid recipe with an explanation of every key."""
    document = tomlkit.parse(text)
    note, own = "\n".join(_comment(NOTE)), leading_comment(text)
    heads = [note] if own in {"", note} else [own, note]
    return "\n\n".join([*heads, *_table(recipe_table(), document)]) + "\n"


def leading_comment(text: str) -> str:
    """Return the comment lines at the start of a text."""
    return "\n".join(takewhile(lambda line: line.startswith("#"), text.lstrip().splitlines()))


def _table(table: RecipeTable, values: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield paragraphs: the table's header and meaning, its keys, then its subtables."""
    if table.path:
        header = f"[{'.'.join(table.path)}]"
        header = f"#{header}" if values is None else f"{header}{_comment_behind(values)}"
        yield "\n".join((header, *_comment(table.meaning)))
    later = []
    for key in table.keys:
        item = None if values is None else _item(values, key.path[-1])
        if _is_table(item):
            later.append((key, item))
        else:
            yield "\n".join((*_explanation(key), _assignment(key, item)))
    for key, item in later:
        yield "\n".join((*_explanation(key), *_free_table(key, item)))
    for inner in table.tables:
        yield from _table(inner, None if values is None else values.get(inner.path[-1]))


def _explanation(key: RecipeKey) -> Iterator[str]:
    yield from _comment(key.meaning)
    presence = "required" if key.required else "optional"
    if key.default is not None:
        presence = f"default {_toml(key.default)}"
    yield from _comment("; ".join(fact for fact in (key.type, key.constraints, presence) if fact))
    yield from _comment("; ".join(f"{where} {name}" for where, name in key.elsewhere.items()))


def _assignment(key: RecipeKey, item: Any) -> str:
    """Return the line that sets a key, as a comment if the recipe omits it."""
    name = key.path[-1]
    if item is not None:
        return f"{name} = {_written(item)}"
    value = key.default if key.default is not None else key.example
    return f"#{name} = {'' if value is None else _toml(value)}"


def _free_table(key: RecipeKey, table: Any) -> Iterator[str]:
    """Yield a table with free keys, such as a model's configuration."""
    yield f"[{key.name}]{_comment_behind(table)}"
    for name in table:
        yield f"{tomlkit.key(name).as_string()} = {_written(_item(table, name))}"


def _is_table(item: Any) -> bool:
    return isinstance(item, Mapping) and not isinstance(item, InlineTable)


def _item(table: Mapping[str, Any], name: str) -> Any:
    """Return an item of a table with its comment, None if missing; mappings unwrap some."""
    if name not in table:
        return None
    container = table.value if isinstance(table, AbstractTable) else table
    if not isinstance(container, Container):  # a table split over several places
        return table[name]
    found = container.item(name)
    return found if isinstance(found, Item) else table[name]


def _written(item: Any) -> str:
    """Return a value as written in the text, with its trailing comment."""
    if isinstance(item, Item) and not _is_table(item) and not isinstance(item, AoT):
        return f"{item.as_string().strip()}{_comment_behind(item)}"
    return _toml(item.unwrap() if hasattr(item, "unwrap") else item)


def _comment_behind(item: Any) -> str:
    trivia = getattr(item, "trivia", None)
    return f"  {trivia.comment}" if trivia is not None and trivia.comment else ""


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = (f"{tomlkit.key(name).as_string()} = {_toml(one)}" for name, one in value.items())
        return f"{{ {', '.join(inner)} }}" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    text: str = tomlkit.item(value).as_string()
    return text


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
