"""Chat with a policy version, or an exported model, on the terminal."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from node.cli import completion
from node.cli.commands.context import data_dir_of, print_json
from node.cli.options import CommandDataDir, Json, ModelVersion
from node.local.errors import ExitCode, NodeError

app = typer.Typer(add_completion=False)


@app.command()
def chat(
    ctx: typer.Context,
    *,
    version: ModelVersion = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Hugging Face directory of another model.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("-p", "--prompt", metavar="TEXT", help="Answer this prompt and exit."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Token limit of an answer; default 512.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature; 0: greedy.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63, help="Sampling seed.")] = 0,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="System message; default: the run's, with examples."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda …", autocompletion=completion.devices)
    ] = "auto",
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Chat with a policy version, or an exported model, on the terminal.

    Answers are streamed. Prompts use the format of the run: the model's chat template after the
    run's own messages, or plain characters in a character-level task. The version is read from a
    node's data directory, also while the node runs.
    """
    if model is not None and (version is not None or data_dir is not None):
        raise NodeError("--model excludes --version and --data-dir", ExitCode.USAGE)
    if as_json and prompt is None:
        raise NodeError("--json is for one answer; add -p TEXT", ExitCode.USAGE)
    from node.models.chat import ChatOptions, ChatSession, answer_once, converse  # noqa: PLC0415 - slow
    from node.models.held import open_held_run  # noqa: PLC0415 - the same
    from node.models.subject import directory_subject, held_subject  # noqa: PLC0415 - the same

    if model is not None:
        subject = directory_subject(model)
    else:
        held = open_held_run(data_dir_of(ctx, data_dir).root)
        subject = held_subject(held, held.version(version))
    opened = ChatSession(subject, ChatOptions(tokens, temperature, seed, system, device))
    if prompt is None:
        run = "" if subject.run is None else f" of run {subject.run.name}"
        typer.echo(f"{subject.name}{run}", err=True)
        converse(opened)
        return
    reply = answer_once(opened, prompt, shown=not as_json)
    if as_json:
        named = {"model": subject.name, "version": subject.version, "digest": subject.digest}
        print_json({**named, "prompt": prompt, **asdict(reply)})
