"""How ``prime-node`` ends: exit codes after ``sysexits.h``, and the error that carries one.

Supervisors rely on them: ``deploy/systemd`` does not restart a node
that cannot start before somebody changes something.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns; 64 to 78 have their meaning from ``sysexits.h``."""

    OK = 0
    """Done, or drained after a signal."""
    CRASH = 1
    """A defect of ours, or what was run has failed."""
    USAGE = 2
    """The command line cannot be understood."""
    NO_DAEMON = 69
    """No running daemon answers in this data directory."""
    LOCKED = 73
    """A directory is in use, or cannot be written."""
    RETRY = 75
    """Not now, such as a port in use: the same command may succeed later."""
    KEY_PERMISSIONS = 77
    """Others can read the identity key."""
    CONFIG = 78
    """A configuration, manifest, device or data directory that cannot be used; a run without us."""
    INTERRUPTED = 130
    """Ctrl-C in a command, as shells count it (128 + SIGINT)."""


class NodeError(Exception):
    """What a person can mend: the message is one line that says what to do next."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
