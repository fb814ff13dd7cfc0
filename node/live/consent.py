"""Whether to join a run that only peers have told of: shown to the person, who has to agree.

Who offers a manifest may be anybody, and its name is what its creator chose. Programs that nobody
sits in front of say beforehand which run they mean, or that any will do.
"""

import asyncio
import sys
from datetime import UTC, datetime

from node.local.errors import ExitCode, NodeError
from protocol.manifest import RunManifest

_YES = ("y", "yes")


async def agreed(manifest: RunManifest) -> bool:
    """Ask on the terminal whether to join a run; raises ``NodeError`` where there is none."""
    run_id, creator = manifest.run_id.hex(), manifest.genesis.creator
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NodeError(
            f"the peers offer run {manifest.name!r} of {creator}; if that is the one you mean, "
            f"add --run-id {run_id}, and --yes joins whatever peers offer",
            ExitCode.CONFIG,
        )
    sys.stderr.write(question(manifest))
    sys.stderr.flush()
    return (await _line()).strip().lower() in _YES


def question(manifest: RunManifest) -> str:
    """Return what a person is asked about a run that peers offer."""
    began = datetime.fromtimestamp(manifest.genesis.created_at, UTC)
    return (
        f"\nThe peers offer the run {manifest.name!r}, of {began:%Y-%m-%d %H:%M} UTC\n"
        f"  id       {manifest.run_id.hex()}\n"
        f"  creator  {manifest.genesis.creator}\n"
        "Its rules decide what this machine computes. Compare the id with what you were told.\n"
        "Join it? [y/N] "
    )


async def _line() -> str:
    """Return the next line of the terminal; a thread that waits for it could not be stopped."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), typed.set)
    try:
        await typed.wait()
        return sys.stdin.readline()
    finally:
        loop.remove_reader(sys.stdin.fileno())
