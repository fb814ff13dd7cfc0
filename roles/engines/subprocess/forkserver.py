"""Fork server: imports the engines' libraries once and forks engine processes in milliseconds.

Importing torch and transformers takes seconds and some 300 MB; forked processes share both. Forking
is safe because this process has one thread and no device: it only imports.

A client sends one byte and three descriptors per fork: the channel that the new process serves, a
lifeline socket, and its standard error. The lifeline carries the process id and, at the end, the
exit status, a line each; a write to it, or its close, kills the process. When the starter's socket
closes, the fork server exits and kills all that it forked.

    python -m roles.engines.subprocess.forkserver DESCRIPTOR ENGINE [SOCKET TO LISTEN ON]
"""

import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import get_args

from roles.engines.factory import EngineName, modules_of
from roles.engines.subprocess.server import serve

_PR_SET_PDEATHSIG = 1
_OOM_SCORE_ADJUSTMENT = 500
"""Out of memory, the kernel kills an engine before the daemon; half of the maximum of 1000."""


class ForkServer:
    """Fork for its clients, in the one thread of this process."""

    def __init__(self, starter: socket.socket, listener: socket.socket | None = None) -> None:
        self._starter = starter
        self._selector = selectors.DefaultSelector()
        self._leashes: dict[int, socket.socket] = {}
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno())
        self._wakes = wakes
        self._selector.register(woken, selectors.EVENT_READ, self._reap)
        self._selector.register(starter, selectors.EVENT_READ, self._fork_for)
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Serve until the starter's socket closes."""
        while self._starter.fileno() >= 0:
            for key, _ in self._selector.select():
                if isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() >= 0:
                    key.data(key.fileobj)
        for pid in self._leashes:
            os.kill(pid, signal.SIGKILL)

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        self._selector.register(client, selectors.EVENT_READ, self._fork_for)

    def _fork_for(self, client: socket.socket) -> None:
        """Fork one process for a client; drop a client that has disconnected."""
        try:
            data, descriptors, _, _ = socket.recv_fds(client, 1, 3)
        except ConnectionError:
            data, descriptors = b"", []
        if not data:
            self._selector.unregister(client)
            client.close()
        elif len(descriptors) == 3:
            self._fork(*descriptors)
        else:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, channel: int, leash: int, errors: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_engine(parent, channel, errors)
        os.close(channel)
        os.close(errors)
        held = self._leashes[pid] = socket.socket(fileno=leash)
        held.setblocking(False)
        self._selector.register(held, selectors.EVENT_READ, self._kill)
        self._tell(pid, str(pid))

    def _become_engine(self, parent: int, channel: int, errors: int) -> None:
        """Become the engine process; never returns."""
        try:
            _leave_with(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon handles Ctrl-C
            with suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_ADJUSTMENT))
            self._close_inherited()
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            os.close(errors)
            serve(socket.socket(fileno=channel))
        except BaseException:  # noqa: BLE001 - the child must not continue as a fork server
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _close_inherited(self) -> None:
        """Close the fork server's sockets: a lifeline held elsewhere would never close."""
        registered = [key.fileobj for key in self._selector.get_map().values()]
        for held in (*registered, *self._leashes.values(), self._wakes):
            if isinstance(held, socket.socket):
                held.close()
        self._selector.close()

    def _kill(self, leash: socket.socket) -> None:
        """Kill the process of a lifeline; ``_reap`` follows."""
        self._selector.unregister(leash)
        for pid, held in self._leashes.items():
            if held is leash:
                os.kill(pid, signal.SIGKILL)

    def _reap(self, woken: socket.socket) -> None:
        woken.recv(4096)
        while self._leashes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._tell(pid, str(os.waitstatus_to_exitcode(status)))
            leash = self._leashes.pop(pid)
            with suppress(KeyError):
                self._selector.unregister(leash)
            leash.close()

    def _tell(self, pid: int, line: str) -> None:
        with suppress(OSError):  # the client has disconnected
            self._leashes[pid].send(f"{line}\n".encode())


def _leave_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even by SIGKILL."""
    with suppress(AttributeError, OSError):  # Linux only; elsewhere the closed channel ends it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def preload(engine: EngineName) -> None:
    """Import the engines' libraries."""
    for module in modules_of(engine):
        import_module(module)
    # Exclude current objects from garbage collection: it would unshare the children's pages.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve the starter's socket, given as a descriptor, and clients that connect."""
    starter = socket.socket(fileno=int(sys.argv[1]))
    (engine,) = (name for name in get_args(EngineName) if name == sys.argv[2])
    listener = None
    if len(sys.argv) > 3:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(sys.argv[3])
        listener.listen()
    preload(engine)
    ForkServer(starter, listener).run()


if __name__ == "__main__":
    main()
