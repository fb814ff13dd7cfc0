"""TCP ports of this machine: taken, or refused with what to do instead."""

import errno
import socket

from node.local.errors import ExitCode, NodeError


def listen(host: str, port: int, *, failure: str, remedy: str) -> socket.socket:
    """Return a socket on a port, 0 for a free one; raises ``NodeError``.

    A port that somebody else has may be free the next time; a host that is not this machine's, or a
    port that only root may take, will not be.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # a bind alone does not tell of who listens with SO_REUSEADDR
    except OSError as error:
        listener.close()
        code = ExitCode.RETRY if error.errno == errno.EADDRINUSE else ExitCode.CONFIG
        reason = f"{failure} on {host}:{port}: {(error.strerror or str(error)).lower()}; {remedy}"
        raise NodeError(reason, code) from None
    return listener
