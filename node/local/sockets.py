"""Listening TCP sockets, and a private directory of unix sockets for p2pd."""

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from node.local.errors import ExitCode, NodeError

SOCKET_PATH_BYTES_MAX = 107
"""Linux's ``sun_path`` without its final zero byte; p2pd rejects longer paths."""

_DIRECTORY_PREFIX = "prime-p2p-"
_LONGEST_NAME = "xxxxxxxx/control.sock"


def listen(host: str, port: int, *, failure: str, remedy: str) -> socket.socket:
    """Return a listening socket on a port, 0 for a free one; raises ``NodeError``.

    A port in use may be free later (``RETRY``). A foreign host or a port that only root may use
    needs another configuration (``CONFIG``).
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # only this fails when another socket listens with SO_REUSEADDR
    except OSError as error:
        listener.close()
        code = ExitCode.RETRY if error.errno == errno.EADDRINUSE else ExitCode.CONFIG
        reason = f"{failure} on {host}:{port}: {(error.strerror or str(error)).lower()}; {remedy}"
        raise NodeError(reason, code) from None
    return listener


class SocketDirectory:
    """Directory of mode 0700 with a path short enough for unix sockets.

    Its owner holds a lock in it, so that the next process to start recognises and removes the
    directory of a killed one.
    """

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        longest = base / f"{_DIRECTORY_PREFIX}{_LONGEST_NAME}"
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX:
            base = Path("/tmp")  # noqa: S108 - mkdtemp below makes an unguessable 0700 directory
        _sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX, dir=base))
        fresh = self.path / "lock.new"
        self._lock = os.open(fresh, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        fresh.rename(self.path / "lock")  # a sweeper never sees it unlocked

    def close(self) -> None:
        """Remove the directory; idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep(base: Path) -> None:
    """Remove this user's socket directories whose owner is dead."""
    for directory in base.glob(f"{_DIRECTORY_PREFIX}*"):
        with suppress(OSError):
            if directory.lstat().st_uid != os.getuid():
                continue
            lock = os.open(directory / "lock", os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
