"""The node processes of a testnet: started, looked at, drained."""

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import psutil

from node.live.sockets import SocketDirectory
from node.testnet import launcher
from node.testnet.child import node_main
from node.testnet.memory import is_running
from node.testnet.plan import Layout, NodePlan
from node.testnet.poll import sample
from node.testnet.record import SwarmRecord
from protocol.types import Role
from roles.engines.child.process import start_fork_server

DRAIN_SECONDS = 20.0
"""A node finishes the rollout it works on and says good-bye; then it is stopped."""

EXIT_POLL_SECONDS = 0.1

LOOPBACK = "127.0.0.1"


class Fleet:
    """Starts nodes and keeps their record up to date.

    The engines of all nodes are forked from one server: torch is imported once, beside the genesis.
    """

    def __init__(self, layout: Layout, record: SwarmRecord, client: httpx.AsyncClient) -> None:
        self._layout = layout
        self._record = record
        self._client = client
        self._processes: dict[str, BaseProcess] = {}
        self._sockets = SocketDirectory()
        self._engine_socket = self._sockets.path / "engines.sock"
        log = layout.log("engines")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._engine_server, self._engine_client = start_fork_server(
                Path(sys.executable), file.fileno(), self._engine_socket
            )

    def close(self) -> None:
        """End what engines are forked from, and with it all that compute."""
        self._engine_client.close()
        self._engine_server.kill()
        self._engine_server.wait()
        self._sockets.close()

    def engine_pids(self) -> list[int]:
        """Return the processes that compute for the nodes."""
        try:
            return [one.pid for one in psutil.Process(self._engine_server.pid).children()]
        except psutil.Error:
            return []

    async def start(self, plan: NodePlan, initial_peers: tuple[str, ...]) -> None:
        """Start a node; it joins by ``initial_peers``, and without any it begins the swarm."""
        # A relay that is started again is then found where everybody knew it.
        port = free_port() if plan.role is Role.RELAY else 0
        settings = {
            "roles": [str(plan.role)],
            "data_dir": str(plan.directory),
            "initial_peers": list(initial_peers),
            "new_swarm": not initial_peers,
            # Who joins asks its peers for the run, as a stranger does.
            "run": None if initial_peers else str(self._layout.manifest),
            "host": LOOPBACK,
            "port": port,
            "engine_server": str(self._engine_socket),
            "log_format": "json",
        }
        command = restart_command(plan, initial_peers, port)
        self._layout.restart_command(plan.name).write_text(command + "\n")
        log = self._layout.log(plan.name)
        self._processes[plan.name] = await launcher.start(node_main, settings, plan.behaviour, log)

    async def observe(self) -> None:
        """Look at every started node once, all at the same time."""
        plans = [self._record.nodes[name].plan for name in self._processes]
        samples = await asyncio.gather(*(sample(self._client, plan.directory) for plan in plans))
        for plan, taken in zip(plans, samples, strict=True):
            self._record.observe(plan.name, taken)

    def exited(self, plan: NodePlan) -> bool:
        """Tell whether the process that we started for a node has ended."""
        process = self._processes.get(plan.name)
        return process is not None and process.exitcode is not None

    async def drain(self) -> list[str]:
        """Ask every node to end, wait, and kill the rest; return the names of those killed."""
        self._signal(signal.SIGTERM)
        for _ in range(round(DRAIN_SECONDS / EXIT_POLL_SECONDS)):
            if not self._living():
                break
            await asyncio.sleep(EXIT_POLL_SECONDS)
        stuck = list(self._living().values())
        await self.kill()
        return stuck

    async def kill(self) -> None:
        """Kill what is left, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        for process in self._processes.values():
            await asyncio.to_thread(process.join, 5.0)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _living(self) -> dict[int, str]:
        """Return our nodes by process, also those that somebody started again by hand."""
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
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def restart_command(plan: NodePlan, initial_peers: tuple[str, ...], port: int) -> str:
    """Return the command that starts a node of the testnet again after it was killed."""
    command = ["prime-node"]
    command += ["adversary", plan.behaviour] if plan.behaviour else ["--role", str(plan.role)]
    command += ["--data-dir", str(plan.directory.resolve()), "--host", LOOPBACK]
    if port:
        command += ["--port", str(port)]
    command += ["--initial-peers", ",".join(initial_peers)] if initial_peers else ["--new-swarm"]
    return shlex.join(command)


def join_command(initial_peers: tuple[str, ...]) -> str:
    """Return the shell command with which anybody on this machine joins."""
    return (
        f"prime-node --role {Role.INFERENCE} --data-dir $(mktemp -d) \\\n"
        f"   --initial-peers {','.join(initial_peers)}"
    )


def tail(log: Path, lines: int = 3) -> str:
    """Return the last lines of a node's log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
