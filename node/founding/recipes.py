"""Loading of recipes: packaged ones by name, others by file."""

from pathlib import Path

import tomlkit

from node.local.errors import ExitCode, NodeError
from protocol.run.outer_bound import check_outer
from protocol.run.recipe import Recipe, ToplocSection
from protocol.run.toml import load_recipe

DIRECTORY = "configs/runs"


def read_recipe(recipe: str) -> Recipe:
    """Return a recipe by name or from a file; raises ``NodeError`` naming the fault."""
    return read_recipe_text(recipe)[0]


def read_recipe_text(recipe: str) -> tuple[Recipe, str]:
    """Return a recipe and its TOML; otherwise as ``read_recipe``."""
    path = recipe_path(recipe)
    try:
        text = path.read_text(encoding="utf-8-sig")
        return _loaded(text), text
    except OSError as error:
        if path.parent == _directory():
            raise NodeError(
                f"no recipe {recipe!r}: there are {', '.join(recipe_names())}, and files that end "
                "with .toml",
                ExitCode.CONFIG,
            ) from None
        raise NodeError(f"{path}: {error.strerror}", ExitCode.CONFIG) from None
    except ValueError as error:  # of the encoding, the TOML or the values
        raise NodeError(f"{path}: {error}", ExitCode.CONFIG) from None


def _loaded(text: str) -> Recipe:
    recipe = load_recipe(text)
    check_outer(recipe.grpo)
    return recipe


def recipe_path(recipe: str) -> Path:
    """Return the path of a packaged recipe, which may be missing."""
    if recipe.endswith(".toml") or "/" in recipe:
        return Path(recipe)
    return _directory() / f"{recipe}.toml"


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes."""
    return sorted(path.stem for path in _directory().glob("*.toml"))


def toploc_toml(rules: ToplocSection) -> str:
    """Return the ``[toploc]`` section of a recipe."""
    values = rules.model_dump()
    honest = {name: tomlkit.inline_table() for name in values["honest"]}
    for name, line in honest.items():
        line.update(values["honest"][name])
    return tomlkit.dumps({"toploc": values | {"honest": honest}})


def expected_file() -> Path:
    """Return the file with the expected curves of the packaged recipes."""
    return _directory().parent / "expected.toml"


def _directory() -> Path:
    return Path(__file__).resolve().parents[2] / DIRECTORY
