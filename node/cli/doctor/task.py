"""Checks for the task of a run: the jail, and the runtime that decides scores."""

import os

from node.cli.doctor import Finding, FindingLevel
from node.local.config import NodeConfig, runtime_directories
from node.local.scoring_runtime import run_options, scores
from protocol.run.manifest import RunManifest
from roles.environments.runtime import NoRuntimeError, interpreter_of


def check_jail(manifest: RunManifest | None) -> Finding:
    """Create a jail and test its isolation; a character-level run needs no jail."""
    from roles.environments.jail import Jail, NoJailError  # noqa: PLC0415 - beside the protocol

    needed = manifest is not None and manifest.environment.in_text
    try:
        Jail(libraries=False)
    except NoJailError as error:
        advice = "install bubblewrap, and allow user namespaces; only tasks in text need it"
        return Finding(
            "jail", FindingLevel.FAILURE if needed else FindingLevel.WARNING, str(error), advice
        )
    return Finding("jail", FindingLevel.OK, "bubblewrap isolates untrusted code")


def check_scoring(config: NodeConfig, manifest: RunManifest | None) -> list[Finding]:
    """Check that the runtime is installed, if the run is known and the node scores."""
    if manifest is None or not manifest.environment.in_text or not scores(config.roles):
        return []
    try:
        found = interpreter_of(manifest.environment, runtime_directories(os.environ))
    except NoRuntimeError as error:
        remedy = error.remedy(run_options(config.run, config.data_dir))
        return [Finding("scoring", FindingLevel.FAILURE, error.needs, remedy)]
    except ValueError as error:
        return [Finding("scoring", FindingLevel.FAILURE, str(error))]
    text = f"{manifest.environment.runtime}, by {found.executable} (Python {found.version})"
    return [Finding("scoring", FindingLevel.OK, text)]
