"""The scoring runtime of a run, as a node looks for it before it takes part."""

import os
from collections.abc import Collection
from pathlib import Path

from node.local.config import NodeConfig, default_data_dir, runtime_directories
from node.local.errors import ExitCode, NodeError
from protocol.core.types import Role
from protocol.run.manifest import RunManifest
from roles.environments.runtime import NoRuntimeError, interpreter_of


def scoring_digest(manifest: RunManifest, config: NodeConfig) -> bytes:
    """Return the digest of the scoring runtime that this node has; empty where it does not score.

    Raises ``NodeError`` where the run's is not here. Blocks for a fraction of a second.
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
    """Return whether a node with these roles asks the run's task for scores: a relay does not."""
    return bool(set(roles) - {Role.RELAY})


def run_options(run: Path | None, data_dir: Path) -> str:
    """Return the options with which a command finds the run of a node."""
    if run is not None:
        return f"--run {run}"
    return "" if data_dir == default_data_dir(os.environ) else f"--data-dir {data_dir}"
