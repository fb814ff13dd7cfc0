"""What a node tells the service manager that started it, in the datagrams of sd_notify(3).

Started is whoever serves and listens: what it waits for in the swarm may take for ever, and is told
as the status line. The watchdog is fed by the event loop: a loop that stands still is replaced.
"""

import asyncio
import os
import socket
from collections.abc import Callable, MutableMapping
from contextlib import suppress

from node.api.status import Stage

LOOK_SECONDS = 0.5

DATAGRAM_BYTES_MAX = 2048
"""A status longer than that is cut: nobody reads it to the end."""


class ServiceManager:
    """Follows ``stage`` until cancelled; does nothing where no service manager listens.

    Its variables are taken out of ``environment``, so that no child process speaks for the node.
    """

    def __init__(self, stage: Callable[[], Stage], environment: MutableMapping[str, str]) -> None:
        self._stage = stage
        path = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._beat_seconds = _watchdog_seconds(environment) / 2
        self._beat_at = 0.0
        self._told = ""
        self._ready = self._stopping = False
        self._socket: socket.socket | None = None

    async def run(self) -> None:
        """Tell what is new, and that the loop runs."""
        if not self._address:
            return
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as self._socket:
            self._socket.setblocking(False)
            try:
                while True:
                    self._tell(self._stage(), loop.time())
                    await asyncio.sleep(min(LOOK_SECONDS, self._beat_seconds or LOOK_SECONDS))
            finally:
                self._tell(Stage("draining"), loop.time())

    def _tell(self, stage: Stage, now: float) -> None:
        lines = []
        if not self._ready and stage.state not in ("starting", "draining"):
            self._ready = True
            lines.append("READY=1")
        if not self._stopping and stage.state == "draining":
            self._stopping = True
            lines.append("STOPPING=1")
        if self._beat_seconds and now >= self._beat_at:
            self._beat_at = now + self._beat_seconds
            lines.append("WATCHDOG=1")
        # A reason may quote what others sent: of a line break it would make another message.
        status = " ".join(f"{stage.state}: {stage.reason}".strip(": ").split())
        if status != self._told:
            self._told = status
            lines.append(f"STATUS={status}")
        if lines:
            self._send("\n".join(lines))

    def _send(self, message: str) -> None:
        assert self._socket is not None
        with suppress(OSError):  # its queue is full, or it is gone: nothing that we could mend
            self._socket.sendto(message.encode()[:DATAGRAM_BYTES_MAX], self._address)


def _watchdog_seconds(environment: MutableMapping[str, str]) -> float:
    """Return after how long without a word the manager kills us; 0 when it does not."""
    usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    ours = not pid or pid == str(os.getpid())
    return int(usec) / 1e6 if ours and usec.isdecimal() else 0.0
