"""Live node: runs ``prime-node --role …`` in this process, from configuration to exit code."""

import asyncio
import os
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from node.api.status import NodeStatus, Stage
from node.api.v1.answers import NodeSummary
from node.api.v1.machine import MachineReader
from node.api.why import Why
from node.local.addresses import load_cached_peers
from node.local.config import NodeConfig
from node.local.datadir import (
    DataDir,
    load_or_create_identity,
    locked,
    open_data_dir,
    store_conflict,
)
from node.local.errors import ExitCode, NodeError
from node.local.log_tail import LogTail
from node.local.logs import adopt_hivemind_logs, configure_logging
from node.local.run_pin import local_run, pin_run
from node.local.status_line import StatusLine
from node.process.factories import MakeEngines, MakePorts, live_engines, live_ports
from node.process.loop_lag import LoopLagMonitor
from node.process.sd_notify import ServiceManager
from node.process.signals import watch_signals
from node.process.startup_log import StartupLog
from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.run.manifest import SignedManifest
from roles.ports.transport import TransportError

if TYPE_CHECKING:
    from node.api.v1.node_source import NodeSource
    from node.daemon import Daemon
    from node.live.hivemind_p2p import HivemindTransport
    from node.network.connections.manager import ConnectionManager
    from roles.ports.clock import Clock

log = structlog.get_logger()

T = TypeVar("T")

MODULES = (
    "node.process.live_run",
    "roles.engines.subprocess.client",
)
"""Slow imports: deferred, so that argument errors and health requests do not wait for them."""


def run_node(
    config: NodeConfig,
    *,
    make_engines: MakeEngines = live_engines,
    make_ports: MakePorts = live_ports,
) -> int:
    """Run a node until it drains; return the exit code. Raises ``NodeError`` on operator errors.

    The first SIGTERM, SIGINT or SIGHUP drains; a second SIGTERM or SIGINT ends the process at once.
    A closing terminal sends SIGHUP; where SIGHUP is ignored (nohup), it stays ignored.
    """
    import uvloop  # noqa: PLC0415 - only a live node needs it

    line = status_line(config.log_format)
    configure_logging(config.log_format, config.log_level, line)
    log.info("starting", roles=[str(role) for role in config.roles], data_dir=str(config.data_dir))
    datadir = open_data_dir(config.data_dir)
    with locked(datadir):
        identity = load_or_create_identity(config.identity_path or datadir.identity)
        node = LiveNode(config, datadir, identity, make_engines, make_ports, line)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(node.run())


class LiveNode:
    """Life of the process: finds the run, opens it, and reports its stage."""

    def __init__(
        self,
        config: NodeConfig,
        datadir: DataDir,
        identity: Identity,
        make_engines: MakeEngines,
        make_ports: MakePorts,
        line: StatusLine | None = None,
    ) -> None:
        self._config = config
        self._datadir = datadir
        self._identity = identity
        self._make_engines = make_engines
        self._make_ports = make_ports
        self._line = line
        self._daemon: Daemon | None = None
        self._joining: ConnectionManager | None = None
        self._started_at = 0.0
        self._stopping = asyncio.Event()
        self._addresses: tuple[str, ...] = ()
        self._loop_watch = LoopLagMonitor()
        self._log_tail = LogTail()
        self._before = Stage("starting", "loading libraries")
        self._start_log = StartupLog(self._stage, line)
        self._supervisor = ServiceManager(self._stage, os.environ)
        self._machine = MachineReader(
            datadir, self._log_tail, self._loop_watch.status, config.blob_quota
        )

    async def run(self) -> ExitCode:
        """Run until drained."""
        from node.api.server import ControlServer  # noqa: PLC0415
        from node.local.system import SystemClock  # noqa: PLC0415

        clock = SystemClock()
        self._started_at = clock.now()
        watch_signals(self._stopping, self._stop)
        self._loop_watch.start()
        self._log_tail.install()
        source = self._make_source(clock)
        control = ControlServer(
            self._status,
            self._why,
            self._config.api_port,
            datadir=self._datadir,
            source=source,
        )
        await control.start()
        work = (self._start_log.run(), self._supervisor.run(), source.watch())
        beside = list(map(asyncio.create_task, work))
        try:
            # Imports take seconds: run them in a thread, so that the loop responds.
            await asyncio.to_thread(_import_all)
            adopt_hivemind_logs()
            return await self._connect(clock, source)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await control.stop()
            self._loop_watch.stop()
            self._log_tail.remove()

    async def _connect(self, clock: "Clock", source: "NodeSource") -> ExitCode:
        from node.network.connections.manager import ConnectionManager  # noqa: PLC0415
        from node.process.setup import open_transport  # noqa: PLC0415

        self._before = Stage("starting", "opening the connection to other peers")
        rng = Rng(os.urandom(32))
        known = local_run(self._datadir, self._config.run, self._config.run_id)
        cached = load_cached_peers(self._datadir)
        initial = list(dict.fromkeys((*self._config.initial_peers, *cached)))
        try:
            transport = await open_transport(self._config, self._datadir, self._identity, initial)
        except TransportError as error:
            raise NodeError(str(error), ExitCode.RETRY) from None
        try:
            self._addresses = tuple(await transport.addresses())
            log.info("listening", peer_id=self._identity.peer_id, addresses=self._addresses)
            peers = ConnectionManager(transport, clock, rng.child("joining"), initial)
            self._joining = peers
            self._before = Stage("joining", "looking for peers")
            manifest = known or await self._until_stopped(self._find_run(transport, peers))
            if manifest is not None:
                await self._live(manifest, transport, clock, rng, initial, source)
        finally:
            await transport.close()
        return ExitCode.OK

    def _make_source(self, clock: "Clock") -> "NodeSource":
        """Return the data source of the HTTP API; before joining it has only the summary."""
        from node.api.v1.node_source import NodeSource  # noqa: PLC0415

        return NodeSource(self._summary, clock, f"{self._started_at:.3f}", self._machine)

    async def _live(
        self,
        manifest: SignedManifest,
        transport: "HivemindTransport",
        clock: "Clock",
        rng: Rng,
        initial_peers: list[str],
        source: "NodeSource",
    ) -> None:
        from node.founding.needs import require_room  # noqa: PLC0415
        from node.process.live_run import LiveRun  # noqa: PLC0415

        await asyncio.to_thread(require_room, manifest.manifest, self._config, self._datadir)
        self._before, self._joining = Stage("starting", "reading stored messages"), None
        makers = self._make_engines, self._make_ports
        run = LiveRun(self._config, self._datadir, self._identity, *makers)
        try:
            daemon = await run.open(manifest, transport, clock, rng, initial_peers)
            self._daemon = daemon
            source.join(daemon.reader)
            if self._stopping.is_set():
                daemon.stop()
            await run.run(daemon)
        finally:
            await run.close()
        if daemon.refusal:
            reason = daemon.refusal
            if daemon.history.conflict is not None:
                proof = daemon.history.conflict.encoded()
                reason += "; " + await asyncio.to_thread(store_conflict, self._datadir, proof)
            code = ExitCode.HISTORY if daemon.history.refusal else ExitCode.LOCKED
            raise NodeError(reason, code)

    async def _find_run(
        self, transport: "HivemindTransport", peers: "ConnectionManager"
    ) -> SignedManifest | None:
        """Find the peers' run and pin it; None when the operator declines to join."""
        from node.process.join import find_run  # noqa: PLC0415

        manifest = await find_run(transport, peers, self._config, self._tell, self._line)
        if manifest is not None:
            await asyncio.to_thread(pin_run, self._datadir, manifest)
        return manifest

    def _tell(self, stage: Stage) -> None:
        self._before = stage

    async def _until_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of ``work``, or None when a signal comes first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            return task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return None

    def _stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()

    def _stage(self) -> Stage:
        if self._daemon is not None:
            return self._daemon.stage()
        if self._stopping.is_set():
            return Stage("draining")
        unreachable = "" if self._joining is None else self._joining.unreachable
        return Stage("joining", unreachable) if unreachable else self._before

    def _status(self) -> NodeStatus:
        if self._daemon is not None:
            status = self._daemon.status()
            machine = self._machine.status(status.p2pd_pid, self._start_log.seconds)
            return replace(status, loop=self._loop_watch.status(), machine=machine)
        return NodeStatus.of(
            self._summary(),
            addresses=self._addresses,
            loop=self._loop_watch.status(),
            machine=self._machine.status(None, self._start_log.seconds),
        )

    def _summary(self) -> NodeSummary:
        """Return the summary of a node that has not joined a run."""
        stage = self._stage()
        return NodeSummary(
            peer_id=self._identity.peer_id,
            run_id=self._config.run_id or "",
            run_name="",
            roles=tuple(map(str, self._config.roles)),
            state=stage.state,
            reason=stage.reason,
            started_at=self._started_at,
            now=time.time(),
        )

    def _why(self) -> Why:
        if self._daemon is not None:
            return self._daemon.why()
        stage = self._stage()
        return Why(stage.state, stage.reason, False, (), ())


def status_line(log_format: str) -> StatusLine | None:
    """Return the status line below the logs; None without a terminal."""
    return StatusLine(sys.stderr) if log_format != "json" and sys.stderr.isatty() else None


def _import_all() -> None:
    for module in MODULES:
        import_module(module)
