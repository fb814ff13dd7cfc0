"""Join prompt: asks the operator to confirm a run that is known only from peers.

Any peer can offer a manifest, and its creator chooses its name. Unattended programs pass
``--run-id`` or ``--yes`` instead.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from node.founding.needs import estimate
from node.local.errors import ExitCode, NodeError
from node.local.run_words import predecessor_text, run_words
from node.local.status_line import StatusLine
from node.local.units import bytes_text
from protocol.core.types import Role
from protocol.run.manifest import RunManifest

QUESTION = "Join it? [y/N] "

_YES = ("y", "yes")
_VALUE_CHARACTERS_MAX = 160


async def agreed(manifest: RunManifest, roles: Sequence[Role], line: StatusLine | None) -> bool:
    """Ask on the terminal whether to join a run; raises ``NodeError`` without a terminal.

    ``line`` is the terminal's status line: it shows the question below the logs.
    """
    run_id, creator = manifest.run_id.hex(), manifest.genesis.creator
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NodeError(
            f"the peers offer run {manifest.name!r} of {creator}; if that is the one you mean, "
            f"add --run-id {run_id}, and --yes joins whatever peers offer",
            ExitCode.CONFIG,
        )
    line = line or StatusLine(sys.stderr)
    line.write(offer(manifest, roles))
    with line.asking(QUESTION):
        return (await _line()).strip().lower() in _YES


def offer(manifest: RunManifest, roles: Sequence[Role]) -> str:
    """Describe a run, and its demands on a machine with these roles."""
    facts = "".join(f"  {name:8}  {_plain(value)}\n" for name, value in _facts(manifest, roles))
    return (
        f"\nThe peers offer a run:\n{facts}"
        "Its rules decide what this machine computes. Compare the id with what you were told.\n"
    )


def _facts(manifest: RunManifest, roles: Sequence[Role]) -> Iterator[tuple[str, str]]:
    words, needs = dict(run_words(manifest)), estimate(manifest)
    began = datetime.fromtimestamp(manifest.genesis.created_at, UTC)
    yield "id", manifest.run_id.hex()
    yield "name", f"{manifest.name}, created {began:%Y-%m-%d %H:%M} UTC"
    yield "creator", manifest.genesis.creator
    if manifest.genesis.predecessor is not None:
        yield "succeeds", predecessor_text(manifest.genesis.predecessor)
    yield "task", words["task"]
    if needs is None:
        yield "model", words["model"]
        return
    yield "model", f"{words['model']}, {needs.weights:,} weights"
    files = sum(file.total_bytes for file in manifest.genesis.files.values())
    task = f"; the files of the task: {bytes_text(files)}" if files else ""
    yield "download", f"{bytes_text(needs.version_bytes)} a version, later ones as patches{task}"
    computing = [(role, needs.memory_of(role)) for role in roles if needs.memory_of(role)]
    memory = ", ".join(f"{bytes_text(size)} for {role}" for role, size in computing)
    if memory:
        yield "memory", f"about {memory}, on the device that computes"
    yield "disk", f"about {bytes_text(needs.disk_of(roles))}"


def _plain(value: str) -> str:
    """Replace control characters in a creator's text, and limit its length."""
    shown = "".join(each if each.isprintable() else "?" for each in value)
    return shown if len(shown) <= _VALUE_CHARACTERS_MAX else f"{shown[:_VALUE_CHARACTERS_MAX]}…"


async def _line() -> str:
    """Return the next line of the terminal; a blocking thread could not be cancelled."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), typed.set)
    try:
        await typed.wait()
        return sys.stdin.readline()
    finally:
        loop.remove_reader(sys.stdin.fileno())
