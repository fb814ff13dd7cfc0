"""Export a policy version as a Hugging Face directory."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from node.cli.commands.context import data_dir_of, print_json
from node.cli.options import CommandDataDir, Json, ModelVersion
from node.local.units import bytes_text

app = typer.Typer(add_completion=False)


@app.command()
def export(
    ctx: typer.Context,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the model.")],
    version: ModelVersion = None,
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Export a policy version as a Hugging Face directory.

    It holds the weights, bit for bit as signed by the run's trainer, configuration, tokenizer, chat
    template, the signed manifest and a model card. Transformers and vLLM load it. The version is
    read from a node's data directory, also while the node runs, or from one made by prime-node run
    create.
    """
    from node.models.export import export as write  # noqa: PLC0415 - not for help
    from node.models.held import open_held_run  # noqa: PLC0415 - the same

    held = open_held_run(data_dir_of(ctx, data_dir).root)
    made = write(held, held.version(version), out)
    if as_json:
        print_json({**asdict(made), "out": str(made.out)})
        return
    size = bytes_text(made.total_bytes)
    sys.stdout.write(f"version {made.version} is in {made.out} ({size}, policy {made.digest})\n")
    if not made.has_tokenizer:
        sys.stderr.write("note: the task is character-level, so there is no tokenizer\n")
