"""Found runs with generated Hugging Face directories, and check the results.

``prime-node run create`` founds a run. A worker generates rollouts of its task, a validator
verifies their bodies as an untrusted worker's, and a trainer trains on one batch of them. Random
weights solve nothing; the reward comes from the requested length. As a control, the worker
generates with the trainer's new version and claims the previous one: all of that must be rejected.
Logits and log-probabilities are compared with Hugging Face's own model of the directory in float32,
one sequence at a time and without a cache.

Directories that must be rejected differ from another one in a single way; the table shows the error
line that a user sees.

Usage: ``python benchmarks/models/directories.py [--only NAME ...] [--json]``, without a network.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read at import of transformers

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
"""Recipe of a task over characters, and in text."""

SAMPLING = {"tokens_max": 24, "length_targets": [6, 18], "length_penalty": 0.02}
"""Long enough to draw several end tokens; the penalty is a guess."""

BEFORE = "prime-node: error: "


@dataclass(frozen=True, slots=True)
class Refused:
    """A directory that was rejected."""

    name: str
    line: str
    within_bar: bool
    """True if a rejection with this text was expected."""


def try_directory(made: Directory, folder: Path) -> Founded | Refused:
    """Write a directory and found a run with it in a new folder."""
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


# Output


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def of_founded(found: Sequence[Founded]) -> str:
    """Return a table of the accepted directories."""
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
    """Return a table of the rejected directories."""
    rows = ((f"`{one.name}`", f"`{one.line.removeprefix(BEFORE)}`") for one in refused)
    return table(("directory", f"refused, after `{BEFORE.strip()}`"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Test and print; return 1 if any result is unexpected."""
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
            sys.stderr.write(f"unexpected result: {tried[-1]}\n")
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
