"""Run discovery: requests the run from peers, and confirmation from the operator."""

import asyncio
from collections.abc import Callable

import structlog

from node.api.status import Stage
from node.local.config import NodeConfig
from node.local.errors import ExitCode, NodeError
from node.local.status_line import StatusLine
from node.network.connections.manager import ConnectionManager
from node.process.join_prompt import agreed
from node.replication.manifest_exchange import fetch_manifest
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.run.manifest import SignedManifest
from roles.ports.transport import Transport, TransportError

log = structlog.get_logger()

PAUSE_SECONDS = 1.0


async def find_run(
    transport: Transport,
    peers: ConnectionManager,
    config: NodeConfig,
    tell: Callable[[Stage], None],
    line: StatusLine | None = None,
) -> SignedManifest | None:
    """Request the run of connected peers until one responds.

    ``tell`` receives the present stage. ``line`` is the status line of the terminal for the prompt.
    Returns None when the operator declines. Raises ``NodeError`` for another run than configured.
    """
    while True:
        for peer in await peers.reach():
            tell(Stage("joining", "asking a peer for the run"))
            manifest = await _offer_of(peer, transport, peers)
            if manifest is None:
                continue
            offered = manifest.manifest.run_id.hex()
            if config.run_id not in (None, offered):
                raise NodeError(
                    f"--run-id asks for run {str(config.run_id)[:12]}…, "
                    f"the peers offer run {offered[:12]}…; check --initial-peers",
                    ExitCode.CONFIG,
                )
            if config.run_id is None and not config.yes:
                tell(Stage("joining", "asking on the terminal whether to join"))
                if not await agreed(manifest.manifest, config.roles, line):
                    log.info("not joined", run_id=offered)
                    return None
            return manifest
        await asyncio.sleep(PAUSE_SECONDS)


async def _offer_of(
    peer: PeerId, transport: Transport, peers: ConnectionManager
) -> SignedManifest | None:
    """Return the run of a peer; None when it does not respond, or its manifest is invalid."""
    try:
        manifest = await fetch_manifest(transport, peer, verify)
    except (TransportError, TimeoutError) as error:
        log.info("manifest request failed", peer=peer, error=str(error))
        return None
    if isinstance(manifest, Fault):
        log.warning("peer sent an invalid manifest", peer=peer, fault=str(manifest))
        peers.blame(peer, manifest)
        return None
    return manifest
