"""Exit codes of ``prime-node`` after ``sysexits.h``, and the error that carries one.

Supervisors rely on them: ``deploy/systemd`` does not restart a node that cannot start before an
operator changes something.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of the process; 64 to 78 have their meaning from ``sysexits.h``."""

    OK = 0
    """Done, or drained after a signal."""
    CRASH = 1
    """A defect of prime-node, or a failed child program."""
    USAGE = 2
    """The command line is invalid."""
    NO_DAEMON = 69
    """No running daemon answers in this data directory."""
    LOCKED = 73
    """A directory is in use or not writable."""
    RETRY = 75
    """Temporary failure, such as a port in use: the same command may succeed later."""
    HISTORY = 76
    """Peers or the data directory show another history than the trusted page, or two histories are
    final."""
    KEY_PERMISSIONS = 77
    """Others can read the identity key."""
    CONFIG = 78
    """Unusable configuration, manifest, device or data directory, or a run that excludes this
    key."""
    INTERRUPTED = 130
    """Ctrl-C in a command, as shells count it (128 + SIGINT)."""


class NodeError(Exception):
    """Error that an operator can fix: one line that says what to do next."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
