"""Disk space check: refuses to start a node with too little room for its run."""

import shutil

from node.api.v1.machine import bytes_under
from node.founding.needs import estimate
from node.local.config import NodeConfig
from node.local.datadir import DataDir
from node.local.errors import ExitCode, NodeError
from node.local.units import bytes_text
from protocol.run.manifest import RunManifest


def require_room(manifest: RunManifest, config: NodeConfig, datadir: DataDir) -> None:
    """Raise ``NodeError`` when the quota or the disk is too small for the run.

    Otherwise the node becomes ready, and stops at the first version that does not fit.
    """
    needs = estimate(manifest)
    if needs is None:
        return
    needed = needs.blobs_of(config.roles)
    if config.blob_quota is not None and config.blob_quota < needed:
        raise NodeError(
            f"--blob-quota {bytes_text(config.blob_quota)} is too small for run {manifest.name!r}: "
            f"it needs {bytes_text(needed)} for weights and rollouts; raise it, or leave it out",
            ExitCode.CONFIG,
        )
    needed = needs.disk_of(config.roles)
    here = bytes_under(datadir.blobs) + bytes_under(datadir.weights)
    free = shutil.disk_usage(datadir.root).free
    if free + here < needed:
        raise NodeError(
            f"{bytes_text(free)} free at {datadir.root}, run {manifest.name!r} needs "
            f"{bytes_text(needed - here)} more there; free some, or choose another --data-dir",
            ExitCode.CONFIG,
        )
