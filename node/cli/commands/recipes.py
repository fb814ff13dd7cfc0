"""List the packaged recipes, or print one with an explanation of each key."""

from dataclasses import asdict
from typing import Annotated

import typer

from node.cli import completion
from node.cli.commands.context import print_json, print_rich
from node.cli.options import Json
from node.founding.recipes import read_recipe_text
from node.local.units import bytes_text
from protocol.run.recipe import Recipe

Named = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="A name, or a TOML file.", autocompletion=completion.recipes
    ),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Explain each key, and add unset keys as comments."),
]


def recipes(*, as_json: Json = False) -> None:
    """List the packaged recipes and their purposes.

    Memory is an estimate for one node of each role.
    """
    from node.founding.recipe_list import listed_recipes  # noqa: PLC0415 - only this lists them

    found = listed_recipes()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    from rich.console import Group  # noqa: PLC0415 - slow to import, and --json does without
    from rich.table import Table  # noqa: PLC0415 - the same

    columns = ("recipe", "weights", "dtype", "task", "trainer", "validator", "worker")
    facts = Table(*columns, box=None, header_style="bold", pad_edge=False)
    facts.caption, facts.caption_justify = "Estimated memory of one node of each role.", "left"
    purposes = Table("recipe", "for", box=None, header_style="bold", pad_edge=False)
    for one in found:
        memory = (one.trainer_bytes, one.validator_bytes, one.worker_bytes)
        facts.add_row(one.recipe, _short(one.weights), one.dtype, one.task, *map(_size, memory))
        purposes.add_row(one.recipe, one.purpose)
    print_rich(Group(facts, "", purposes))


def recipe(*, name: Named, explain: Explain = False, as_json: Json = False) -> None:
    """Print a recipe as TOML, the input of run create.

    --explain adds the meaning, limits, default and names in other trainers of each key, and unset
    keys as comments. --json prints the same as a list of keys.
    """
    rules, text = read_recipe_text(name)
    if as_json:
        print_json(_keys(rules))
    elif explain:
        from node.founding.explained_recipe import explained_toml  # noqa: PLC0415 - as above

        typer.echo(explained_toml(text), nl=False)
    else:
        typer.echo(text, nl=False)


def _keys(rules: Recipe) -> list[dict[str, object]]:
    from node.founding.recipe_keys import recipe_table  # noqa: PLC0415 - reads the source

    values = rules.model_dump(mode="json")
    return [
        {
            "key": key.name,
            "meaning": key.meaning,
            "type": key.type,
            "constraints": key.constraints,
            "required": key.required,
            "default": key.default,
            "value": key.value_in(values),
            "elsewhere": dict(key.elsewhere),
        }
        for key in recipe_table().every_key()
    ]


def _size(taken: int | None) -> str:
    return "" if taken is None else bytes_text(taken)


def _short(weights: int | None) -> str:
    """Return a parameter count as in model names: 135M, 32.8B."""
    if weights is None:
        return ""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if weights >= size:
            return f"{weights / size:.3g}{unit}"
    return str(weights)
