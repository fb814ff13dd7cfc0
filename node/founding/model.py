"""The model of a run: from a Hugging Face directory to its section and its first policy."""

from pathlib import Path

from node.founding.needs import Needs, needs_of
from node.local.errors import ExitCode, NodeError
from protocol.manifest import RunManifest
from protocol.recipe import ModelSection, Recipe
from protocol.types import Digest


def require_model(directory: Path) -> None:
    """Raise ``ValueError`` for what is no Hugging Face directory."""
    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory}: no Hugging Face model, it has no config.json")


def import_model(directory: Path, recipe: Recipe, path: Path) -> tuple[ModelSection, Digest]:
    """Write the first policy to ``path``; return the model's section and the policy's digest.

    Raises ``ValueError`` for a model that the engines do not compute.
    """
    require_model(directory)
    from roles.engines.published import (  # noqa: PLC0415 - torch takes seconds
        import_pretrained,
        section_of,
    )

    section = section_of(directory, recipe.model)
    return section, import_pretrained(directory, path, section.dtype)


def needs_of_run(manifest: RunManifest) -> Needs:
    """Return what a run needs; raises ``NodeError`` for a model that is not computed here."""
    from roles.engines.architectures.model import weights_of  # noqa: PLC0415 - torch takes seconds

    try:
        return needs_of(manifest, weights_of(manifest.model))
    except ValueError as error:
        raise NodeError(f"this software cannot compute it: {error}", ExitCode.CONFIG) from None
