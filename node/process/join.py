"""Finds the run that a node joins: asks peers for it, and the person where nobody has said."""

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
    """Ask peers which run they are in until one says; ``tell`` is told what is waited for.

    ``line`` is the status line of the terminal on which a person is asked.

    None when the person does not want to join it. Raises ``NodeError`` when it is another one than
    was asked for.
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
    """Return the run of a peer; None when it does not say, or says it wrongly."""
    try:
        manifest = await fetch_manifest(transport, peer, verify)
    except (TransportError, TimeoutError) as error:
        log.info("peer does not say its run", peer=peer, error=str(error))
        return None
    if isinstance(manifest, Fault):
        log.warning("peer offers a bad run manifest", peer=peer, fault=str(manifest))
        peers.blame(peer, manifest)
        return None
    return manifest
