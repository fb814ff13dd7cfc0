"""A run on this machine: opens its live ports, makes its daemon, and runs it until it drains."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import structlog

from node.api.step_logs.writer import StepLogWriter, step_logs
from node.context import Ports, background_task
from node.daemon import Daemon
from node.live.hivemind_dht import HivemindDirectory
from node.live.hivemind_p2p import HivemindTransport
from node.local.addresses import store_cached_peers
from node.local.config import NodeConfig
from node.local.datadir import DataDir, machine_fingerprint
from node.local.errors import ExitCode, NodeError
from node.local.system import ThreadBackground
from node.membership.announcer import About
from node.process.factories import MakeEngines, MakePorts
from node.process.http_service import HttpService
from node.process.setup import about_us, open_store
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.storage.row_files import RowDirectory
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.crypto import Identity
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.membership.directory_buckets import Buckets
from protocol.replica.replica import Replica
from protocol.run.manifest import SignedManifest
from roles.ports.clock import Clock
from roles.ports.transport import Trust

log = structlog.get_logger()

CACHE_PEERS_SECONDS = 10.0


class LiveRun:
    """The daemon of one run and its ports; ``open``, then ``run``, and ``close`` in any case."""

    def __init__(
        self,
        config: NodeConfig,
        datadir: DataDir,
        identity: Identity,
        make_engines: MakeEngines,
        make_ports: MakePorts,
    ) -> None:
        self._config = config
        self._datadir = datadir
        self._identity = identity
        self._make_engines = make_engines
        self._make_ports = make_ports
        self._daemon: Daemon | None = None
        self._opened = AsyncExitStack()

    async def open(
        self,
        manifest: SignedManifest,
        transport: HivemindTransport,
        clock: Clock,
        rng: Rng,
        initial_peers: list[str],
    ) -> Daemon:
        """Open the ports, make the daemon, and serve over HTTP; raises ``NodeError``."""
        run, run_id = manifest.manifest, manifest.manifest.run_id
        # All of these read or sync files.
        store = await asyncio.to_thread(
            open_store, self._config, self._datadir, self._identity, manifest, clock.now()
        )
        self._opened.callback(store.close)
        log.info("run", name=run.name, run_id=run_id.hex(), creator=run.genesis.creator)
        directory = await HivemindDirectory.create(
            transport,
            self._identity,
            run_id,
            Buckets(run_id),
            trust=Trust.of(self._trust),
            blame=self._blame,
            hidden=transport.hidden,
        )
        self._opened.push_async_callback(directory.close)
        data = self._datadir
        blobs = await asyncio.to_thread(FileBlobs, data.blobs, self._config.blob_quota)
        policy_files = await asyncio.to_thread(
            PolicyDirectory, data.weights, data.genesis, data.task, blobs
        )
        about = await asyncio.to_thread(about_us, self._config, manifest)
        background = ThreadBackground()
        self._opened.callback(background.close)
        http = HttpService(self._config.host, self._config.http_port, transport.host_of)
        self._opened.push_async_callback(http.close)
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
            rows=await asyncio.to_thread(RowDirectory, data.rows),
        )
        about = replace(about, http_port=http.port)
        self._daemon = daemon = self._make_daemon(manifest, about, ports, initial_peers, transport)
        daemon.context.tables.register(*directory.tables)
        await http.serve(daemon, blobs)
        return daemon

    async def run(self, daemon: Daemon) -> None:
        """Run the daemon until it has drained; store its addresses and its training steps."""
        kept = step_logs(self._config.log_to, self._datadir.training, daemon.context)
        logs = StepLogWriter(daemon.context, kept)
        logs.start()
        try:
            async with background_task(self._cache_peers(daemon)):
                await daemon.run()
        finally:
            await logs.close()

    async def close(self) -> None:
        """Close the ports that are open."""
        await self._opened.aclose()

    def _make_daemon(
        self,
        manifest: SignedManifest,
        about: About,
        ports: Ports,
        initial_peers: list[str],
        transport: HivemindTransport,
    ) -> Daemon:
        page = self._config.page or None
        try:
            return Daemon(
                manifest,
                self._identity,
                about,
                self._make_ports(ports, self._identity, self._replica),
                self._make_engines(self._config, ports.background),
                initial_peers,
                upload_bytes_per_second=self._config.upload_limit,
                machine=machine_fingerprint(self._datadir),
                trusted_page=page and TrustedPage.parse(page),
                shadows=self._config.shadow,
                p2pd_pid=lambda: transport.p2pd_pid,
            )
        except ValueError as error:  # for example a missing dependency of the task
            raise NodeError(str(error), ExitCode.CONFIG) from None

    # The ports are made before the daemon, and call these later.

    def _replica(self) -> Replica | None:
        return None if self._daemon is None else self._daemon.replica

    def _trust(self) -> Trust:
        return Trust() if self._daemon is None else self._daemon.context.trust

    def _blame(self, peer: PeerId, fault: Fault) -> None:
        if self._daemon is not None:
            self._daemon.context.peers.blame(peer, fault)

    async def _cache_peers(self, daemon: Daemon) -> None:
        """Store reachable addresses, so that a start without bootstrap peers finds the swarm."""
        while True:
            await asyncio.sleep(CACHE_PEERS_SECONDS)
            addresses = daemon.reachable_addresses()
            if addresses:
                await asyncio.to_thread(store_cached_peers, self._datadir, addresses)
