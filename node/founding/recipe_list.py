"""List of the packaged recipes with model, task and memory."""

import re
from dataclasses import dataclass

from node.founding.explained_recipe import leading_comment
from node.founding.found import draft
from node.founding.needs import estimate
from node.founding.recipes import read_recipe_text, recipe_names
from protocol.run.recipe import EnvironmentSection, Recipe


@dataclass(frozen=True, slots=True)
class ListedRecipe:
    """Recipe in the list; memory is an estimate in bytes per role, None if unknown."""

    recipe: str
    model: str
    weights: int | None
    dtype: str
    task: str
    purpose: str
    trainer_bytes: int | None
    validator_bytes: int | None
    worker_bytes: int | None


def listed_recipes() -> list[ListedRecipe]:
    """Return the packaged recipes, sorted by name."""
    return [_listed(name) for name in recipe_names()]


def first_sentence(comment: str) -> str:
    """Return the first sentence of a comment, without text in brackets."""
    text = " ".join(line.removeprefix("#").strip() for line in comment.splitlines())
    text = re.sub(r"\s*\([^()]*\)", "", text)
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def _listed(name: str) -> ListedRecipe:
    recipe, text = read_recipe_text(name)
    needs = estimate(draft(_over_characters(recipe), "00" * 32, {}, 0))
    return ListedRecipe(
        recipe=name,
        model=recipe.model.name,
        weights=None if needs is None else needs.weights,
        dtype=recipe.model.dtype,
        task=recipe.environment.name,
        purpose=first_sentence(leading_comment(text)),
        trainer_bytes=None if needs is None else needs.trainer_bytes,
        validator_bytes=None if needs is None else needs.validator_bytes,
        worker_bytes=None if needs is None else needs.worker_bytes,
    )


def _over_characters(recipe: Recipe) -> Recipe:
    """Return a recipe with a task without a scoring runtime; memory does not depend on the task."""
    task = EnvironmentSection(name="arithmetic")
    return recipe.model_copy(update={"environment": task})
