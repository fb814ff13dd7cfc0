"""Engine test: generate and verify in a child process, which a faulty device may crash."""

import asyncio
import json
import os
import sys
from pathlib import Path

from node.cli.doctor import Finding, FindingLevel

ENGINE_SECONDS = 180.0
"""Importing torch takes 6 s, and several times that from a cold disk; the rest is a guess."""

_ERROR_CHARACTERS_MAX = 200


async def check_engine(
    device: str,
    recipe: Path,
    engine: str = "builtin",
    python: Path | None = None,
    run: str | None = None,
) -> Finding:
    """Generate and verify rollouts on ``device`` with a recipe's model and random weights.

    ``python`` is the interpreter of engines, None for this one. ``run`` is the name of the recipe's
    run: its thresholds hold for trained weights, so random weights are not compared with them.
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
        found = f"no result on {device} within {ENGINE_SECONDS:g} s"
        return Finding("engine", FindingLevel.FAILURE, found, "check the device's driver")
    if child.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no output"]
        reason = f"exit code {child.returncode}: {lines[-1][:_ERROR_CHARACTERS_MAX]}"
        return Finding(
            "engine", FindingLevel.FAILURE, reason, "check the device's driver and memory"
        )
    values = json.loads(output)
    model = "a small model" if run is None else f"a model of the size of {run}"
    found = (
        f"{model} generates {values['generate_tokens_per_second']:,} tokens/s and verifies "
        f"{values['verify_tokens_per_second']:,} on {values['device']}"
    )
    if values["excess"] and run is None:
        advice = f"{values['excess']}: run prime-node calibrate before creating a run"
        return Finding(
            "engine", FindingLevel.WARNING, f"{found}, with unusual rounding errors", advice
        )
    return Finding("engine", FindingLevel.OK, found)
