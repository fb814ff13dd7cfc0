"""One ``p2pd`` child: the Go libp2p host that carries all our streams.

The binary is the one in hivemind's wheel. Three things bind its life to ours: its own session, so
that Ctrl-C in a terminal stops us first and it after a clean shutdown; the persistent control
connection of ``control``, because p2pd exits when its last persistent client is gone; and
``-idleTimeout`` for a crash before that connection exists. ``PR_SET_PDEATHSIG`` would need code
between fork and exec, which may deadlock in a process with threads (torch), and adds nothing that
we could measure.
"""

import asyncio
import errno
import importlib.util
import logging
import os
import re
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from roles.ports.transport import TransportError

log = logging.getLogger(__name__)

START_SECONDS = 30.0
"""Patience for one start: 0.5 s is usual, and 15 s is too short on a loaded machine."""

START_ATTEMPTS = 3
START_PAUSE_SECONDS = 0.5
STOP_SECONDS = 3.0
IDLE_SECONDS = 30
MESSAGE_BYTES_MAX = 1 << 20
"""Unary messages (directory calls) through p2pd; hivemind's default is four times this."""

CONNECTIONS_HIGH = 512
CONNECTIONS_LOW = 448
"""Above the one p2pd ends connections that it was not told to keep, down to the other, so as few as
it takes: the node itself ends those that it needs least (``node.network.connections.manager``)."""

GRACE_SECONDS = 0
"""How long a connection is not ended by that, whoever has it. Who comes back as often as it is sent
away is always new; with a grace those would go that stayed, and whom the node keeps with them."""

_CONFIG_FILE = "p2pd.json"
_CONFIG = '{"Relay": {"Enabled": false}}'
"""Keeps p2pd from being a relay, which no flag can: by default each carries circuits of anybody, of
128 KiB and two minutes, whatever ``relay``, ``relayService`` and its limits say (docs/adr/0032).
Circuits are dialled and accepted all the same, and ``node.network.relay`` carries them."""

_LOG_LINES_KEPT = 20
_TIMESTAMP = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ")


class StartFault(Enum):
    """Why p2pd did not start; only ``OTHER`` may pass by itself and is tried again."""

    BINARY = "the p2pd binary cannot be run"
    PORT_IN_USE = "the listen port is in use"
    OTHER = "p2pd did not start"


class P2pdError(TransportError):
    """p2pd could not be started; reads as one line for people."""

    def __init__(self, fault: StartFault, detail: str) -> None:
        super().__init__(f"{fault.value}: {detail}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class P2pdOptions:
    """What the child is started with.

    ``host`` is the IPv4 address to listen on, ``port`` its TCP port (0: any free one), ``announce``
    the multiaddresses to tell others instead of the listen address. A ``hidden`` node is behind NAT
    for all that is known: it serves no lookups, and has a direct connection arranged with whoever
    reaches it through a relay. (``p2pd`` finds that out by itself only after minutes.)
    """

    host: str = "127.0.0.1"
    port: int = 0
    announce: tuple[str, ...] = ()
    hidden: bool = False


def binary_path() -> Path:
    """Return the path of hivemind's p2pd; raises ``P2pdError`` when hivemind is not installed."""
    spec = importlib.util.find_spec("hivemind")
    if spec is None or not spec.submodule_search_locations:
        raise P2pdError(StartFault.BINARY, "hivemind is not installed")
    return Path(spec.submodule_search_locations[0]) / "hivemind_cli" / "p2pd"


class P2pd:
    """A running p2pd whose control socket answers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LOG_LINES_KEPT)
        self._ready = asyncio.Event()
        self._output = asyncio.create_task(self._read_output())

    @classmethod
    async def start(
        cls, identity_path: Path, sockets: Path, options: P2pdOptions, binary: Path | None = None
    ) -> "P2pd":
        """Start a child that listens for control at ``sockets/control.sock``.

        Raises ``P2pdError`` after at most ``START_ATTEMPTS`` tries, with the reason.
        """
        binary = binary or binary_path()
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                return await cls._start_once(binary, identity_path, sockets, options)
            except P2pdError as error:
                if error.fault is not StartFault.OTHER or attempt == START_ATTEMPTS:
                    raise
                log.warning("%s; attempt %d of %d", error, attempt, START_ATTEMPTS)
                await asyncio.sleep(START_PAUSE_SECONDS * attempt)
        raise AssertionError("the last attempt returns or raises")

    @classmethod
    async def _start_once(
        cls, binary: Path, identity_path: Path, sockets: Path, options: P2pdOptions
    ) -> "P2pd":
        _require_free_port(options)
        control_path = sockets / "control.sock"
        control_path.unlink(missing_ok=True)
        (sockets / _CONFIG_FILE).write_text(_CONFIG)
        try:
            process = await asyncio.create_subprocess_exec(
                str(binary),
                *_arguments(identity_path, control_path, options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, "GOLOG_LOG_LEVEL": "error", "GOLOG_LOG_FMT": "json"},
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise P2pdError(StartFault.BINARY, f"{binary}: {reason}") from error
        daemon = cls(process)
        try:
            await daemon._wait_ready()
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    async def exited(self) -> int:
        """Wait until the child is gone; return its exit code (negative: the signal's number)."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Ask the child to stop, and kill it if it does not within ``STOP_SECONDS``."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._output.cancel()
        await asyncio.wait([self._output])

    async def _wait_ready(self) -> None:
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait(
                [ready, self._output],
                timeout=START_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ready.cancel()
        if self._ready.is_set():
            return
        if not self._output.done():
            raise P2pdError(StartFault.OTHER, f"no answer within {START_SECONDS:g} s")
        code = await self._process.wait()
        last = _TIMESTAMP.sub("", self._lines[-1]) if self._lines else f"exit code {code}"
        in_use = "address already in use" in last
        raise P2pdError(StartFault.PORT_IN_USE if in_use else StartFault.OTHER, last)

    async def _read_output(self) -> None:
        """Keep the pipe empty; the lines matter for a failed start and for debugging."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than the reader's limit: dropped, the next one follows
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            log.debug("p2pd: %s", text)
            if text.startswith("Peer ID:"):
                self._ready.set()


def _arguments(identity_path: Path, control_path: Path, options: P2pdOptions) -> list[str]:
    """Return the command line.

    TLS only, because it carries 1.2 times the bytes of Noise and Go's default hosts accept both.
    The Kademlia server finds the addresses of peers that are known by id alone. ``autonat`` is what
    switches hole punching on.
    """
    arguments = {
        "listen": f"/unix{control_path}",
        "id": str(identity_path),
        "hostAddrs": f"/ip4/{options.host}/tcp/{options.port}",
        "announceAddrs": ",".join(options.announce),
        "idleTimeout": f"{IDLE_SECONDS}s",
        "persistentConnMaxMsgSize": str(MESSAGE_BYTES_MAX),
        "dhtClient" if options.hidden else "dhtServer": "true",
        "forceReachabilityPrivate": "true" if options.hidden else "",
        "noise": "false",
        "tls": "true",
        "f": str(control_path.with_name(_CONFIG_FILE)),
        "relay": "false",
        "relayService": "false",
        "natPortMap": "false",
        "autonat": "true",
        "connManager": "true",
        "connHi": str(CONNECTIONS_HIGH),
        "connLo": str(CONNECTIONS_LOW),
        "connGrace": f"{GRACE_SECONDS}s",
    }
    return [f"-{name}={value}" for name, value in arguments.items() if value]


def _require_free_port(options: P2pdOptions) -> None:
    """Raise ``P2pdError`` when somebody listens on our port.

    p2pd binds with SO_REUSEPORT (hole punching needs it), so a second p2pd of the same user would
    start without an error and steal half of the connections.
    """
    if not options.port:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
            probe.listen()
        except OSError as error:
            fault = StartFault.PORT_IN_USE if error.errno == errno.EADDRINUSE else StartFault.OTHER
            address = f"{options.host}:{options.port}"
            raise P2pdError(fault, f"{address}: {error.strerror}") from error
