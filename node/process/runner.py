"""Live node: runs ``prime-node --role …`` in this process, from configuration to exit code."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import structlog

from node.api.status import NodeStatus, Stage
from node.api.v1.answers import NodeSummary
from node.api.v1.machine import MachineReader
from node.api.why import Why
from node.local.addresses import load_cached_peers, store_cached_peers
from node.local.config import NodeConfig, runtime_directories
from node.local.datadir import DataDir, load_or_create_identity, locked, open_data_dir
from node.local.errors import ExitCode, NodeError
from node.local.log_tail import LogTail
from node.local.logs import adopt_hivemind_logs, configure_logging
from node.local.place import machine_fingerprint
from node.local.run_pin import local_run, pin_run
from node.local.status_line import StatusLine
from node.process.loop_lag import LoopLagMonitor
from node.process.sd_notify import ServiceManager
from node.process.signals import watch_signals
from node.process.startup_log import StartupLog
from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.run.manifest import SignedManifest
from roles.ports.background import Background
from roles.ports.engines import Engines
from roles.ports.transport import TransportError

log = structlog.get_logger()

CACHE_PEERS_SECONDS = 10.0

MODULES = (
    "node.daemon",
    "node.local.background",
    "node.live.hivemind_dht",
    "node.live.hivemind_p2p",
    "node.process.http_service",
    "node.local.hardware",
    "node.api.step_logs.writer",
    "node.storage.policy_files",
    "node.storage.state",
    "roles.engines.subprocess.client",
)
"""Slow imports: deferred, so that argument errors and health requests do not wait for them."""

MakeEngines = Callable[[NodeConfig, Background], Engines]


MakePorts = Callable[[Any, Identity, Callable[[], Any]], Any]
"""``(ports, identity, replica)`` -> ports of the daemon; ``replica`` returns None at first."""


def live_ports(ports: Any, _identity: Identity, _replica: Callable[[], Any]) -> Any:
    """Return the live ports unchanged."""
    return ports


def live_engines(config: NodeConfig, background: Background) -> Engines:
    """Return engines that compute in their own processes."""
    from roles.engines.subprocess.client import ChildEngines  # noqa: PLC0415 - not for a relay's start
    from roles.engines.subprocess.process import EngineProcesses  # noqa: PLC0415 - the same

    return ChildEngines(
        EngineProcesses(config.engine_python, config.engine_server, config.engine),
        background,
        DataDir(config.data_dir).task,
        config.device,
        engine=config.engine,
        gpus=config.engine_gpus,
        memory_bytes_max=config.engine_memory,
        runtimes=runtime_directories(os.environ),
    )


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
    """Opens the live ports, finds the run, and starts the daemon."""

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
        self._daemon: Any = None
        self._joining: Any = None
        self._started_at = 0.0
        self._stopping = asyncio.Event()
        self._addresses: tuple[str, ...] = ()
        self._loop_watch = LoopLagMonitor()
        self._log_tail = LogTail()
        self._source: Any = None
        self._before = Stage("starting", "loading libraries")
        self._start_log = StartupLog(self._stage, line)
        self._supervisor = ServiceManager(self._stage, os.environ)
        self._machine = MachineReader(
            datadir, self._log_tail, self._loop_watch.status, config.blob_quota
        )

    async def run(self) -> ExitCode:
        """Run until drained."""
        from node.api.server import ControlServer  # noqa: PLC0415
        from node.live.clock import SystemClock  # noqa: PLC0415

        clock = SystemClock()
        self._started_at = clock.now()
        watch_signals(self._stopping, self._stop)
        self._loop_watch.start()
        self._log_tail.install()
        self._source = self._make_source(clock)
        control = ControlServer(
            self._status,
            self._why,
            self._config.api_port,
            datadir=self._datadir,
            source=self._source,
        )
        await control.start()
        work = (self._start_log.run(), self._supervisor.run(), self._source.watch())
        beside = list(map(asyncio.create_task, work))
        try:
            # Imports take seconds: run them in a thread, so that the loop responds.
            await asyncio.to_thread(_import_all)
            adopt_hivemind_logs()
            return await self._connect(clock)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await control.stop()
            self._loop_watch.stop()
            self._log_tail.remove()

    async def _connect(self, clock: Any) -> ExitCode:
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
            self._joining = ConnectionManager(transport, clock, rng.child("joining"), initial)
            self._before = Stage("joining", "looking for peers")
            manifest = known or await self._until_stopped(self._find_run(transport))
            if manifest is not None:
                await self._live(transport, clock, rng, manifest, initial)
                if self._daemon.refusal:
                    raise NodeError(self._daemon.refusal, ExitCode.LOCKED)
        finally:
            await transport.close()
        return ExitCode.OK

    def _make_source(self, clock: Any) -> Any:
        """Return the data source of the HTTP API; before joining it has only the summary."""
        from node.api.v1.node_source import NodeSource  # noqa: PLC0415

        return NodeSource(self._summary, clock, f"{self._started_at:.3f}", self._machine)

    async def _live(
        self,
        transport: Any,
        clock: Any,
        rng: Rng,
        manifest: SignedManifest,
        initial_peers: list[str],
    ) -> None:
        from node.context import Ports  # noqa: PLC0415
        from node.live.hivemind_dht import HivemindDirectory  # noqa: PLC0415
        from node.local.background import ThreadBackground  # noqa: PLC0415
        from node.process.disk_space import require_room  # noqa: PLC0415
        from node.process.http_service import HttpService  # noqa: PLC0415
        from node.process.setup import about_us, open_store  # noqa: PLC0415
        from node.storage.blobs import FileBlobs  # noqa: PLC0415
        from node.storage.policy_files import PolicyDirectory  # noqa: PLC0415
        from protocol.membership.directory_buckets import Buckets  # noqa: PLC0415

        run, run_id = manifest.manifest, manifest.manifest.run_id
        await asyncio.to_thread(require_room, run, self._config, self._datadir)
        self._before, self._joining = Stage("starting", "reading stored messages"), None
        # All of these read or sync files.
        store = await asyncio.to_thread(
            open_store, self._config, self._datadir, self._identity, manifest, clock.now()
        )
        log.info("run", name=run.name, run_id=run_id.hex(), creator=run.genesis.creator)
        directory = await HivemindDirectory.create(
            transport, self._identity, run_id, Buckets(run_id), hidden=transport.hidden
        )
        data = self._datadir
        blobs = await asyncio.to_thread(FileBlobs, data.blobs, self._config.blob_quota)
        policy_files = await asyncio.to_thread(
            PolicyDirectory, data.weights, data.genesis, data.task, blobs
        )
        about = await asyncio.to_thread(about_us, self._config, manifest)
        background = ThreadBackground()
        http = HttpService(self._config.host, self._config.http_port, transport.host_of)
        about = replace(about, http_port=http.port)
        ports = Ports(
            clock=clock,
            rng=rng,
            transport=transport,
            directory=directory,
            blobs=blobs,
            store=store,
            files=policy_files,
            background=background,
            http=http.client,
        )
        try:
            self._daemon = self._make_daemon(manifest, about, ports, initial_peers)
            context = self._daemon.context
            directory.trust(context.trust, context.peers.blame)
            context.tables.register(*directory.tables)
            if self._stopping.is_set():
                self._daemon.stop()
            await http.serve(self._daemon, blobs)
            await self._run_daemon(context)
        finally:
            await http.close()
            background.close()
            await directory.close()
            store.close()

    async def _run_daemon(self, context: Any) -> None:
        from node.api.step_logs.writer import StepLogWriter, step_logs  # noqa: PLC0415

        caching = asyncio.create_task(self._cache_peers())
        kept = step_logs(self._config.log_to, self._datadir.training, context)
        logs = StepLogWriter(context, kept)
        logs.start()
        try:
            await self._daemon.run()
        finally:
            caching.cancel()
            await logs.close()

    def _make_daemon(
        self, manifest: SignedManifest, about: Any, ports: Any, initial_peers: list[str]
    ) -> Any:
        from node.daemon import Daemon  # noqa: PLC0415

        try:
            daemon = Daemon(
                manifest,
                self._identity,
                about,
                self._make_ports(
                    ports, self._identity, lambda: self._daemon and self._daemon.replica
                ),
                self._make_engines(self._config, ports.background),
                initial_peers,
                upload_bytes_per_second=self._config.upload_limit,
                machine=machine_fingerprint(self._datadir),
                p2pd_pid=lambda: ports.transport.p2pd_pid,
            )
        except ValueError as error:  # for example a missing dependency of the task
            raise NodeError(str(error), ExitCode.CONFIG) from None
        self._source.join(daemon.reader)
        return daemon

    async def _find_run(self, transport: Any) -> SignedManifest | None:
        """Find the peers' run and pin it; None when the operator declines to join."""
        from node.process.join import find_run  # noqa: PLC0415

        manifest = await find_run(transport, self._joining, self._config, self._tell, self._line)
        if manifest is not None:
            await asyncio.to_thread(pin_run, self._datadir, manifest)
        return manifest

    def _tell(self, stage: Stage) -> None:
        self._before = stage

    async def _until_stopped(self, work: Any) -> Any:
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

    async def _cache_peers(self) -> None:
        """Store reachable addresses, so that a start without bootstrap peers finds the swarm."""
        while True:
            await asyncio.sleep(CACHE_PEERS_SECONDS)
            addresses = self._daemon.reachable_addresses()
            if addresses:
                await asyncio.to_thread(store_cached_peers, self._datadir, addresses)

    def _stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()

    def _stage(self) -> Stage:
        if self._daemon is not None:
            stage: Stage = self._daemon.stage()
            return stage
        if self._stopping.is_set():
            return Stage("draining")
        unreachable = "" if self._joining is None else self._joining.unreachable
        return Stage("joining", unreachable) if unreachable else self._before

    def _status(self) -> NodeStatus:
        if self._daemon is not None:
            status: NodeStatus = self._daemon.status()
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
            why: Why = self._daemon.why()
            return why
        stage = self._stage()
        return Why(stage.state, stage.reason, False, (), ())


def status_line(log_format: str) -> StatusLine | None:
    """Return the status line below the logs; None without a terminal."""
    return StatusLine(sys.stderr) if log_format != "json" and sys.stderr.isatty() else None


def _import_all() -> None:
    for module in MODULES:
        import_module(module)
