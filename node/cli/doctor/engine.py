"""The engine: a small model generates and is checked in a process that may die of its device."""

import asyncio
import json
import os
import sys
from pathlib import Path

from node.cli.doctor.finding import Finding, FindingLevel

ENGINE_SECONDS = 180.0
"""Importing torch takes 6 s, and several times that on a machine that reads it for the first time;
the rest is a guess."""

_ERROR_CHARACTERS_MAX = 200


async def check_engine(
    device: str,
    recipe: Path,
    engine: str = "builtin",
    python: Path | None = None,
    run: str | None = None,
) -> Finding:
    """Let an engine generate and check on ``device`` with the model of a recipe.

    The weights are random. ``python`` is the interpreter that engines run with, None for our own;
    ``run`` the name of the run whose recipe it is: its thresholds are those of trained weights, so
    random ones are not compared with them.
    """
    command = [str(python or sys.executable), "-m", "roles.engines.selftest", str(recipe), device]
    command.append(engine)
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        output, errors = await asyncio.wait_for(child.communicate(), ENGINE_SECONDS)
    except TimeoutError:
        child.kill()
        await child.wait()
        found = f"computed nothing on {device} in {ENGINE_SECONDS:g} s"
        return Finding("engine", FindingLevel.FAILURE, found, "look at the device's driver")
    if child.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no word"]
        reason = f"exit code {child.returncode}: {lines[-1][:_ERROR_CHARACTERS_MAX]}"
        return Finding(
            "engine", FindingLevel.FAILURE, reason, "look at the device's driver and memory"
        )
    values = json.loads(output)
    model = "a small model" if run is None else f"a model of the size of {run}"
    found = (
        f"{model} generates {values['generate_tokens_per_second']:,} tokens/s and checks "
        f"{values['verify_tokens_per_second']:,} on {values['device']}"
    )
    if values["excess"] and run is None:
        advice = f"{values['excess']}: measure with prime-node calibrate before founding a run"
        return Finding("engine", FindingLevel.WARNING, f"{found}, and rounds unlike others", advice)
    return Finding("engine", FindingLevel.OK, found)
