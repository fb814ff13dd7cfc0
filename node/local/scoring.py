"""Lookup of the run's scoring runtime before a node takes part."""

import os
from collections.abc import Collection
from pathlib import Path

from node.local.config import NodeConfig, default_data_dir, runtime_directories
from node.local.errors import ExitCode, NodeError
from protocol.core.types import Role
from protocol.run.manifest import RunManifest
from roles.environments.runtime import NoRuntimeError, interpreter_of


def scoring_digest(manifest: RunManifest, config: NodeConfig) -> bytes:
    """Return the digest of the node's scoring runtime; empty for roles that do not score.

    Raises ``NodeError`` if the runtime is missing. Blocks for a fraction of a second.
    """
    if not manifest.environment.in_text or not scores(config.roles):
        return b""
    try:
        return interpreter_of(manifest.environment, runtime_directories(os.environ)).digest
    except NoRuntimeError as error:
        options = run_options(config.run, config.data_dir)
        raise NodeError(error.told(options), ExitCode.CONFIG) from None
    except ValueError as error:
        raise NodeError(str(error), ExitCode.CONFIG) from None


def scores(roles: Collection[Role]) -> bool:
    """Return whether one of these roles scores answers: all but the relay do."""
    return bool(set(roles) - {Role.RELAY})


def run_options(run: Path | None, data_dir: Path) -> str:
    """Return the command-line options that select a node's run."""
    if run is not None:
        return f"--run {run}"
    return "" if data_dir == default_data_dir(os.environ) else f"--data-dir {data_dir}"
