"""Hugging Face directories made on the spot: what comes of each when a run is founded with it.

``prime-node run create`` founds the run. A worker then generates rollouts of the run's task, a
validator examines their bodies as it would those of a stranger, and a trainer learns from one batch
of them; random weights solve nothing, and what teaches is the length that a prompt asks for. As a
control, the worker generates with the version that the trainer made and claims the one before: all
of that must be rejected. Logits and log-probabilities are compared with the forward pass of Hugging
Face's own model of the directory in float32, one sequence at a time and without a cache.

A directory that must be refused is one of the others but for one thing; the table shows the line
that a person sees.

Usage: ``python benchmarks/models/directories.py [--only NAME ...] [--json]``, without a network.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # it is read when transformers is imported

import argparse
import asyncio
import io
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import tomlkit
import torch
import transformers
from made import REFUSED, TAKEN, Directory
from trial import Founded, Trial

from node.cli.main import main as prime_node
from node.founding.recipes import read_recipe, recipe_path

RECIPES = {False: "testnet", True: "tiny-qwen3-bpe"}
"""Over characters, and in text."""

SAMPLING = {"tokens_max": 24, "length_targets": [6, 18], "length_penalty": 0.02}
"""Long enough for several end tokens to be drawn; the penalty is a guess."""

BEFORE = "prime-node: error: "
"""What stands before each refusal."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A directory that became no run."""

    name: str
    line: str
    within_bar: bool
    """Whether it should be refused, and by this name."""


def try_directory(made: Directory, folder: Path) -> Founded | Refused:
    """Write a directory and let a run be founded with it, in a new folder."""
    recipe = folder / "recipe.toml"
    values = tomllib.loads(recipe_path(RECIPES[made.in_text]).read_text())
    values["sampling"] |= SAMPLING
    recipe.write_text(tomlkit.dumps(values))
    made.write(folder / made.name, read_recipe(str(recipe)))
    run = folder / "run"
    arguments = ["run", "create", "--model", folder / made.name, "--recipe", recipe, "--out", run]
    arguments += ["--uncalibrated", "--no-trial"]  # a trial of its own follows
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = prime_node([*map(str, arguments), "--trainers", "1", "--validators", "2"])
    if code:
        line = said.getvalue().splitlines()[-1].replace(f"{folder}/", "")
        named = bool(made.refused) and made.refused in line and not run.exists()
        return Refused(made.name, line, named)
    if made.refused:
        return Refused(made.name, "it was founded", within_bar=False)
    with closing(Trial(folder / made.name, run)) as trial:
        return asyncio.run(trial.result(made))


# What is shown


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def of_founded(found: Sequence[Founded]) -> str:
    """Return a table of the directories that became runs."""
    columns = (
        "directory",
        "features",
        "logits",
        "log-probs",
        "tokens",
        "end tokens drawn",
        "rejected",
        "lies rejected",
        "updates",
    )
    return table(
        columns,
        (
            (
                f"`{one.name}`",
                one.features,
                f"{one.logits:.1e}",
                f"{max(one.logprobs):.1e}",
                f"{one.tokens:,}",
                f"{one.end_tokens_drawn} of {one.end_tokens}",
                f"{one.rejected} of {one.rollouts}",
                f"{one.lies_rejected} of {one.lies}",
                str(one.updates),
            )
            for one in found
        ),
    )


def of_refused(refused: Sequence[Refused]) -> str:
    """Return a table of those that did not."""
    rows = ((f"`{one.name}`", f"`{one.line.removeprefix(BEFORE)}`") for one in refused)
    return table(("directory", f"refused, after `{BEFORE.strip()}`"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try and print; return 1 when anything is not as it should be."""
    known = {one.name: one for one in (*TAKEN, *REFUSED)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=known, default=list(known), metavar="NAME")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tried = []
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="directories-") as folder:
            tried.append(try_directory(known[name], Path(folder)))
        if not tried[-1].within_bar:
            sys.stderr.write(f"not as it should be: {tried[-1]}\n")
    found = [one for one in tried if isinstance(one, Founded)]
    refused = [one for one in tried if isinstance(one, Refused)]
    within_bar = all(one.within_bar for one in tried)
    if options.json:
        values = {
            "within_bar": within_bar,
            "founded": [asdict(one) for one in found],
            "refused": [asdict(one) for one in refused],
        }
        print(json.dumps(values))
    else:
        print(of_founded(found), of_refused(refused), sep="\n\n")
    return 0 if within_bar else 1


if __name__ == "__main__":
    sys.exit(main())
