"""The node's state on disk, or what to do where it cannot be used."""

from pathlib import Path

from node.local.errors import ExitCode, NodeError
from node.storage.state import SqliteStore


def open_state(path: Path) -> SqliteStore:
    """Open the database of a data directory; raises ``NodeError``."""
    try:
        return SqliteStore(path)
    except OSError as error:
        reason = f"cannot open {path}: {error.strerror or error}"
        advice = "make room on the disk, or mend its permissions"
        raise NodeError(f"{reason}; {advice}", ExitCode.LOCKED) from None
    except ValueError as error:
        raise NodeError(
            f"{path} is {error}; restore it from a backup, or move it and its -wal file away: the "
            "node then goes on as one that lost its disk, and takes care not to sign twice",
            ExitCode.CONFIG,
        ) from None
