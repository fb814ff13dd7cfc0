"""Evaluate policy versions, or exported models, on held-out problems."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from node.cli import completion
from node.cli.commands.context import data_dir_of, print_json, print_rich
from node.cli.commands.progress import progress_of
from node.cli.options import CommandDataDir, Json
from node.local.errors import ExitCode, NodeError

app = typer.Typer(add_completion=False)

TOKENS_MAX = 512
"""Token limit of an answer without a run."""

Versions = Annotated[
    str | None, typer.Option(metavar="N,N", help="Versions to compare; default the newest.")
]
Models = Annotated[
    list[Path] | None,
    typer.Option("--model", metavar="DIR", help="Hugging Face directory to compare; repeat."),
]
Tasks = Annotated[
    str,
    typer.Option(
        metavar="TASK,TASK",
        help="own (default), reasoning-gym:NAME, or math or code with --dataset.",
    ),
]
Dataset = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Held-out rows: parquet, JSON lines or csv.")
]


@app.command("eval")
def evaluate(
    ctx: typer.Context,
    *,
    versions: Versions = None,
    model: Models = None,
    tasks: Tasks = "own",
    dataset: Dataset = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems per task.")] = 200,
    samples: Annotated[
        int, typer.Option(min=0, help="Sampled answers per problem, besides the greedy one.")
    ] = 0,
    greedy: Annotated[bool, typer.Option(help="Evaluate a greedy answer, too.")] = True,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.01, help="Sampling temperature; default the run's, else 1."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Token limit; default the run's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63, help="Seed of problems and sampling.")] = 0,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda …", autocompletion=completion.devices)
    ] = "auto",
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluate policy versions, or exported models, on held-out problems.

    The table shows pass@1 (the fraction of answers with score 1), its 95 % interval, and the
    difference to the first model on the same problems. Problems come from unused seeds, from the
    rows of a file, or from the run's own rows: the held-out ones of a run with an evaluation
    section, else its training rows. Versions are read from a node's data directory, also while the
    node runs.
    """
    if not (greedy or samples):
        raise NodeError("--no-greedy needs --samples", ExitCode.USAGE)
    from node.local.system import ThreadBackground  # noqa: PLC0415 - not for help
    from node.models.choice import subjects_of, tasks_of  # noqa: PLC0415 - the same
    from node.models.evaluation import Decoding, Evaluation, EvaluationPlan  # noqa: PLC0415
    from node.models.evaluation_report import notes_of, table_of, values_of  # noqa: PLC0415
    from node.models.held import open_held_run  # noqa: PLC0415 - the same

    here = data_dir is not None or versions is not None or not model
    held = open_held_run(data_dir_of(ctx, data_dir).root) if here else None
    subjects = subjects_of(held, versions, model or [])
    run = subjects[0].run
    sampled = temperature or (1.0 if run is None else run.sampling.temperature)
    decodings = [Decoding(0.0)] if greedy else []
    decodings += [Decoding(sampled, samples)] if samples else []
    tokens_max = tokens or (TOKENS_MAX if run is None else run.sampling.tokens_max)
    plan = EvaluationPlan(decodings, problems, tokens_max, seed, device)
    background = ThreadBackground()
    try:
        with tempfile.TemporaryDirectory(prefix="prime-node-eval-") as scratch:
            chosen = tasks_of(tasks, dataset, held, subjects[0], Path(scratch), _say)
            with progress_of("evaluating", "answers") as progress:
                results = Evaluation(subjects, chosen, plan, background, progress).run()
    finally:
        background.close()
    if as_json:
        run_id = None if run is None else run.run_id.hex()
        print_json({"run_id": run_id, "seed": seed, "results": values_of(results)})
        return
    print_rich(table_of(results))
    sys.stdout.write("\n" + "".join(f"{line}\n" for line in notes_of(results)))


def _say(line: str) -> None:
    typer.echo(line, err=True)
