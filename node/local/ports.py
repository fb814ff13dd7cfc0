"""Listening TCP sockets, with an error that names a remedy."""

import errno
import socket

from node.local.errors import ExitCode, NodeError


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
