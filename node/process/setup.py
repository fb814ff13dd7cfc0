"""Startup of a live node: transport, state database, and its own description."""

from dataclasses import replace
from pathlib import Path

from node.live.hivemind_p2p import HivemindTransport
from node.live.p2pd import P2pdOptions
from node.local.addresses import host_of, is_local
from node.local.config import NodeConfig
from node.local.datadir import DataDir
from node.local.errors import ExitCode, NodeError
from node.local.hardware import probe_hardware
from node.local.scoring_runtime import scoring_digest
from node.local.software import SOFTWARE
from node.membership.admission import stored_proof, why_not
from node.membership.announcer import About
from node.network.connections.dial_policy import DialPolicy
from node.storage.state import SqliteStore
from protocol.core.crypto import Identity
from protocol.run.manifest import SignedManifest


def open_state(path: Path) -> SqliteStore:
    """Open the database of a data directory; raises ``NodeError``."""
    try:
        return SqliteStore(path)
    except OSError as error:
        reason = f"cannot open {path}: {error.strerror or error}"
        advice = "free disk space, or fix its permissions"
        raise NodeError(f"{reason}; {advice}", ExitCode.LOCKED) from None
    except ValueError as error:
        raise NodeError(
            f"{path} is {error}; restore it from a backup, or move it and its -wal file away: the "
            "node then goes on as one that lost its disk, and takes care not to sign twice",
            ExitCode.CONFIG,
        ) from None


async def open_transport(
    config: NodeConfig, datadir: DataDir, identity: Identity, initial: list[str]
) -> HivemindTransport:
    """Start p2pd; restart it as ``hidden`` if the node has only local addresses (p2pd option).

    Raises ``TransportError``.
    """
    path = config.identity_path or datadir.identity
    options = P2pdOptions(config.host, config.port, config.announce)
    transport = await HivemindTransport.create(identity, path, options)
    own = await transport.addresses()
    if not all(map(is_local, map(host_of, own))) or DialPolicy(initial).is_local(own):
        return transport
    await transport.close()
    return await HivemindTransport.create(identity, path, replace(options, hidden=True))


def open_store(
    config: NodeConfig,
    datadir: DataDir,
    identity: Identity,
    manifest: SignedManifest,
    now: float,
) -> SqliteStore:
    """Open the node's state; raises ``NodeError`` when the run does not admit its key."""
    store = open_state(datadir.state)
    proofs = (config.invite, stored_proof(store))
    reason = why_not(manifest.manifest, identity.peer_id, config.roles, proofs, now)
    if reason:
        store.close()
        raise NodeError(reason, ExitCode.CONFIG)
    return store


def about_us(config: NodeConfig, manifest: SignedManifest) -> About:
    """Return this node's description for its record; probes the machine.

    Raises ``NodeError`` when the run's scoring runtime is missing.
    """
    return About(
        config.roles,
        probe_hardware(),
        reachable=True,
        software=SOFTWARE,
        scoring=scoring_digest(manifest.manifest, config),
        upload_bytes_per_second=config.upload_limit or 0,
        name=config.name,
        invite=config.invite,
    )
