"""Check of the jail for programs and checkers of tasks in text."""

from node.cli.doctor.finding import Finding, FindingLevel
from protocol.run.manifest import RunManifest


def check_jail(manifest: RunManifest | None) -> Finding:
    """Create a jail and test its isolation; a character-level run needs no jail."""
    from roles.environments.jail import Jail, NoJailError  # noqa: PLC0415 - beside the protocol

    needed = manifest is not None and "/" in manifest.environment.name
    try:
        Jail(libraries=False)
    except NoJailError as error:
        advice = "install bubblewrap, and allow user namespaces; only tasks in text need it"
        return Finding(
            "jail", FindingLevel.FAILURE if needed else FindingLevel.WARNING, str(error), advice
        )
    return Finding("jail", FindingLevel.OK, "bubblewrap isolates untrusted code")
