"""Node processes of a testnet: start, poll and drain."""

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import sys
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import psutil

from node.local.config import flag
from node.local.memory import is_running
from node.local.sockets import SocketDirectory
from node.testnet import launcher
from node.testnet.child import DRAIN_SECONDS, node_main
from node.testnet.plan import NodePlan, Options, SwarmLayout
from node.testnet.poll import sample
from node.testnet.record import SwarmRecord
from protocol.core.types import Role
from roles.engines.factory import EngineName
from roles.engines.subprocess.process import start_fork_server

EXIT_POLL_SECONDS = 0.1

LOOPBACK = "127.0.0.1"


class EngineServer:
    """Fork server of the engines of many nodes, which imports their libraries once."""

    def __init__(self, engine: EngineName, python: Path, directory: Path, log: Path) -> None:
        self.socket = directory / f"{engine}.sock"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._process, self._client = start_fork_server(
                python, file.fileno(), self.socket, engine
            )

    def close(self) -> None:
        """Kill the server and all of its children."""
        self._client.close()
        self._process.kill()
        self._process.wait()

    def pids(self) -> list[int]:
        """Return the engine processes."""
        try:
            return [one.pid for one in psutil.Process(self._process.pid).children()]
        except psutil.Error:
            return []


class Fleet:
    """The nodes of a testnet; it starts them and updates their record."""

    def __init__(
        self, layout: SwarmLayout, record: SwarmRecord, client: httpx.AsyncClient, options: Options
    ) -> None:
        self._layout = layout
        self._record = record
        self._client = client
        self._options = options
        self._processes: dict[str, BaseProcess] = {}
        self._sockets = SocketDirectory()
        own = Path(sys.executable)
        pythons = {"builtin": own, options.engine: options.engine_python or own}
        self._engine_servers = {
            engine: EngineServer(
                engine, python, self._sockets.path, layout.log(f"engines-{engine}")
            )
            for engine, python in pythons.items()
        }

    def close(self) -> None:
        """Kill the fork servers and all engines."""
        for server in self._engine_servers.values():
            server.close()
        self._sockets.close()

    def engine_pids(self) -> list[int]:
        """Return the engine processes of all nodes."""
        return [pid for server in self._engine_servers.values() for pid in server.pids()]

    async def start(self, plan: NodePlan, initial_peers: tuple[str, ...]) -> None:
        """Start a node; without ``initial_peers`` it starts the swarm."""
        # A fixed port lets peers find a restarted relay at its old address.
        port = free_port() if plan.role is Role.RELAY else 0
        engine = self._engine(plan)
        own = self._options.trainer if plan.role is Role.TRAINER else {}
        settings = {
            "roles": [str(plan.role)],
            "name": plan.name,
            "data_dir": str(plan.directory),
            "initial_peers": list(initial_peers),
            "new_swarm": not initial_peers,
            # A joining node gets the run from its peers, as in a real swarm.
            "run": None if initial_peers else str(self._layout.manifest),
            "yes": True,
            "host": LOOPBACK,
            "port": port,
            "upload_limit": self._options.upload_bytes_per_second,
            "engine": engine,
            "engine_server": str(self._engine_servers[engine].socket),
            **own,
            "log_format": "json",
            "log_to": list(self._options.log_to) if plan.role is Role.TRAINER else [],
        }
        command = restart_command(plan, initial_peers, port, own)
        if engine != "builtin":
            python = self._options.engine_python or Path(sys.executable)
            command += f" --engine {engine} --engine-python {shlex.quote(str(python.absolute()))}"
        self._layout.restart_command(plan.name).write_text(command + "\n")
        log = self._layout.log(plan.name)
        self._processes[plan.name] = await launcher.start(node_main, settings, plan.behaviour, log)

    def _engine(self, plan: NodePlan) -> EngineName:
        """Return the engine of a node; a dishonest node needs the built-in engine."""
        honest = plan.role is Role.INFERENCE and not plan.behaviour
        return self._options.engine if honest else "builtin"

    async def observe(self) -> None:
        """Poll all started nodes once, concurrently."""
        plans = [self._record.nodes[name].plan for name in self._processes]
        samples = await asyncio.gather(*(sample(self._client, plan.directory) for plan in plans))
        for plan, taken in zip(plans, samples, strict=True):
            self._record.observe(plan.name, taken)

    def exited(self, plan: NodePlan) -> bool:
        """Return whether the started process of a node has exited."""
        process = self._processes.get(plan.name)
        return process is not None and process.exitcode is not None

    async def drain(self) -> list[str]:
        """Send SIGTERM to every node, wait, and kill the rest; return the names of killed nodes."""
        self._signal(signal.SIGTERM)
        for _ in range(round(DRAIN_SECONDS / EXIT_POLL_SECONDS)):
            if not self._living():
                break
            await asyncio.sleep(EXIT_POLL_SECONDS)
        stuck = list(self._living().values())
        await self.kill()
        return stuck

    async def kill(self) -> None:
        """Kill the remaining nodes and wait for their exit."""
        self._signal(signal.SIGKILL)
        for process in self._processes.values():
            await asyncio.to_thread(process.join, 5.0)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _living(self) -> dict[int, str]:
        """Return the nodes by process id, including those restarted by hand."""
        own = {
            process.pid: name
            for name, process in self._processes.items()
            if process.exitcode is None and process.pid is not None
        }
        restarted = {
            node.pid: node.plan.name
            for node in self._record.running
            if node.pid is not None and is_running(node.pid)
        }
        return own | restarted


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def restart_command(
    plan: NodePlan, initial_peers: tuple[str, ...], port: int, own: Mapping[str, str] | None = None
) -> str:
    """Return the command that restarts a killed node of the testnet, with its ``own`` options."""
    command = program()
    honest = ["--role", str(plan.role), "--name", plan.name]
    command += ["adversary", plan.behaviour] if plan.behaviour else honest
    command += ["--data-dir", str(plan.directory.resolve()), "--host", LOOPBACK]
    if port:
        command += ["--port", str(port)]
    for key, value in (own or {}).items():
        command += [flag(key), value]
    command += ["--initial-peers", ",".join(initial_peers)] if initial_peers else ["--new-swarm"]
    return shlex.join(command)


def join_command(
    initial_peers: tuple[str, ...], run_id: str, data_dir: Path, page: str = ""
) -> str:
    """Return the shell command with which another node of this machine joins.

    ``page`` seated the present council; it is empty for the genesis, which the run id names.
    """
    return shlex.join(
        [
            *program(),
            *("--role", str(Role.INFERENCE)),
            *("--data-dir", str(data_dir)),
            *("--host", LOOPBACK),
            *("--run-id", run_id),
            *("--initial-peers", ",".join(initial_peers)),
            *(("--page", page) if page else ()),
        ]
    )


def status_command(data_dir: Path) -> str:
    """Return the shell command that shows the status of a node."""
    return shlex.join([*program(), "status", "--data-dir", str(data_dir)])


def program() -> list[str]:
    """Return the command words of the running prime-node, independent of the shell's directory."""
    installed = Path(sys.executable).with_name("prime-node")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "node.cli.main"]


def tail(log: Path, lines: int = 3) -> str:
    """Return the last lines of a node's log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
