"""Service manager notifications (sd_notify(3)): readiness, status and watchdog.

A node is ready once it serves and listens: waits in the swarm may be unbounded, and appear in the
status line. The event loop feeds the watchdog, so systemd restarts a node whose loop hangs.
"""

import asyncio
import os
import socket
from collections.abc import Callable, MutableMapping
from contextlib import suppress

from node.api.status import Stage

LOOK_SECONDS = 0.5

DATAGRAM_BYTES_MAX = 2048
"""Longer messages are truncated."""


class ServiceManager:
    """Follows ``stage`` until cancelled; does nothing without a service manager.

    Removes its variables from ``environment``, so that no child process can notify.
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
        """Send changes and watchdog beats."""
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
        # A reason may quote untrusted text: a line break would start another message.
        status = " ".join(f"{stage.state}: {stage.reason}".strip(": ").split())
        if status != self._told:
            self._told = status
            lines.append(f"STATUS={status}")
        if lines:
            self._send("\n".join(lines))

    def _send(self, message: str) -> None:
        assert self._socket is not None
        with suppress(OSError):  # its queue is full, or it has exited
            self._socket.sendto(message.encode()[:DATAGRAM_BYTES_MAX], self._address)


def _watchdog_seconds(environment: MutableMapping[str, str]) -> float:
    """Return the watchdog timeout of the service manager; 0 if disabled."""
    usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    ours = not pid or pid == str(os.getpid())
    return int(usec) / 1e6 if ours and usec.isdecimal() else 0.0
