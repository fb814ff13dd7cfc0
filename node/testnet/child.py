"""What runs in the processes that the testnet forks."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from node.local.config import NodeConfig
from node.local.errors import NodeError
from node.local.memory import peak_rss_bytes
from node.process.runner import MakeEngines, live_engines, run_node
from roles.ports.engines import Engines

BEHAVIOUR_GROUP = "prime_node.behaviours"

DRAIN_SECONDS = 20.0
"""A node finishes the rollout it works on and says good-bye; then it is stopped."""


def node_main(settings: dict[str, Any], behaviour: str, log: Path) -> None:
    """Be a node until it ends, and exit with its code; ``settings`` are keys of ``NodeConfig``."""
    _detach(log)
    if behaviour:  # what it forges goes where the rest of its files are
        tempfile.tempdir = str(settings["data_dir"])
    make_engines = dishonest(behaviour) if behaviour else live_engines
    try:
        config = NodeConfig.model_validate(settings)
        sys.exit(run_node(config, make_engines=make_engines))
    except NodeError as error:
        sys.stderr.write(f"{error.message}\n")
        sys.exit(error.exit_code)


def dishonest(kind: str) -> MakeEngines:
    """Return what makes the engines of a node that behaves as ``kind``.

    Raises ``ValueError`` when no such behaviour is registered.
    """
    behaviour = _load_behaviour(kind)
    return lambda config, background: behaviour(live_engines(config, background))


def _load_behaviour(kind: str) -> Callable[[Engines], Engines]:
    found = entry_points(group=BEHAVIOUR_GROUP, name=kind)
    if not found:
        known = ", ".join(sorted(entry_points(group=BEHAVIOUR_GROUP).names))
        raise ValueError(f"no behaviour {kind!r}; there are: {known}")
    behaviour: Callable[[Engines], Engines] = next(iter(found)).load()
    return behaviour


def answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Send (error text, result, peak memory in bytes) of a call back to the testnet."""
    os.setsid()
    _leave_with_parent()
    error, result = "", None
    try:
        result = function(*arguments)
    except Exception as failure:  # noqa: BLE001 - it is raised again in the testnet's process
        error = f"{type(failure).__name__}: {failure}"
    sender.send((error, result, peak_rss_bytes(os.getpid())))


def _detach(log: Path) -> None:
    """Leave the terminal's process group, write to ``log``, and end when the testnet does."""
    os.setsid()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    _leave_with_parent()


def _leave_with_parent() -> None:
    """Drain when the testnet is gone, also when it was killed, and end in time as with it.

    Our own children end with us: p2pd by its control connection, engines by their leash, jails by
    a signal of the kernel.
    """
    parent = parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(DRAIN_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="testnet-watch", daemon=True).start()
