"""Check of the scoring runtime of a run: its Python and the packages that decide scores."""

import os

from node.cli.doctor.finding import Finding, FindingLevel
from node.local.config import NodeConfig, runtime_directories
from node.local.scoring import run_options, scores
from protocol.run.manifest import RunManifest
from roles.environments.runtime import NoRuntimeError, interpreter_of


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
