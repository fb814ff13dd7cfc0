"""Entry points of the processes that the testnet forks."""

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
from node.process.factories import MakeEngines, live_engines
from node.process.runner import run_node
from roles.ports.engines import Engines

BEHAVIOUR_GROUP = "prime_node.behaviours"

DRAIN_SECONDS = 20.0
"""Time limit for a node to finish its rollout and leave the swarm before it is killed."""


def node_main(settings: dict[str, Any], behaviour: str, log: Path) -> None:
    """Run a node and exit with its code; ``settings`` are keys of ``NodeConfig``."""
    _detach(log)
    if behaviour:  # forged files go into the node's directory
        tempfile.tempdir = str(settings["data_dir"])
    make_engines = dishonest(behaviour) if behaviour else live_engines
    try:
        config = NodeConfig.model_validate(settings)
        sys.exit(run_node(config, make_engines=make_engines))
    except NodeError as error:
        sys.stderr.write(f"{error.message}\n")
        sys.exit(error.exit_code)


def dishonest(kind: str) -> MakeEngines:
    """Return the factory of engines with the dishonest behaviour ``kind``.

    Raises ``ValueError`` when no such behaviour is registered.
    """
    behaviour = _load_behaviour(kind)
    return lambda config, background: behaviour(live_engines(config, background))


def _load_behaviour(kind: str) -> Callable[[Engines], Engines]:
    found = entry_points(group=BEHAVIOUR_GROUP, name=kind)
    if not found:
        known = ", ".join(sorted(entry_points(group=BEHAVIOUR_GROUP).names))
        raise ValueError(f"no behaviour {kind!r}; known are: {known}")
    behaviour: Callable[[Engines], Engines] = next(iter(found)).load()
    return behaviour


def answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Call a function and send (error text, result, peak memory in bytes) to the testnet."""
    os.setsid()
    _leave_with_parent()
    error, result = "", None
    try:
        result = function(*arguments)
    except Exception as failure:  # noqa: BLE001 - raised again in the testnet's process
        error = f"{type(failure).__name__}: {failure}"
    sender.send((error, result, peak_rss_bytes(os.getpid())))


def _detach(log: Path) -> None:
    """Leave the terminal's process group, log to ``log``, and end with the testnet."""
    os.setsid()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    _leave_with_parent()


def _leave_with_parent() -> None:
    """Drain when the testnet exits or is killed, and kill this process after ``DRAIN_SECONDS``.

    Child processes end with this one: p2pd by its control connection, engines by their lifeline,
    jails by a signal of the kernel.
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
