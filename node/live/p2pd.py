"""p2pd child process: the Go libp2p host that carries all streams.

The binary comes with hivemind's wheel. Three mechanisms tie its lifetime to the node's. It has its
own session, so Ctrl-C in a terminal reaches the node first, which then stops it. p2pd exits when
its last persistent client disconnects (``control``). ``-idleTimeout`` covers a crash before that
connection exists. ``PR_SET_PDEATHSIG`` would need code between fork and exec, which may deadlock
with threads (torch), and had no measurable benefit.
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
"""Deadline of one start: 0.5 s is usual, and 15 s is too short on a loaded machine."""

START_ATTEMPTS = 3
START_PAUSE_SECONDS = 0.5
STOP_SECONDS = 3.0
IDLE_SECONDS = 30
MESSAGE_BYTES_MAX = 1 << 20
"""Limit of unary messages (directory calls); hivemind's default is four times this."""

CONNECTIONS_HIGH = 512
CONNECTIONS_LOW = 448
"""Watermarks of p2pd's connection manager, as a backstop: the node prunes its least useful
connections first (``node.network.connections.manager``)."""

GRACE_SECONDS = 0
"""Time for which p2pd spares a new connection. With a grace period, peers that reconnect at once
would displace connections that the node keeps."""

_CONFIG_FILE = "p2pd.json"
_CONFIG = '{"Relay": {"Enabled": false}}'
"""Disables p2pd's relay service; no flag does. By default it relays for any peer, 128 KiB and two
minutes per circuit, regardless of ``relay``, ``relayService`` and its limits (docs/adr/0032).
Dialling and accepting circuits still works; ``node.network.relay`` relays them."""

_LOG_LINES_KEPT = 20
_TIMESTAMP = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ")


class StartFault(Enum):
    """Reason of a failed start; only ``OTHER`` may be transient and is retried."""

    BINARY = "the p2pd binary cannot be run"
    PORT_IN_USE = "the listen port is in use"
    OTHER = "p2pd did not start"


class P2pdError(TransportError):
    """Failed start of p2pd, as one line for the operator."""

    def __init__(self, fault: StartFault, detail: str) -> None:
        super().__init__(f"{fault.value}: {detail}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class P2pdOptions:
    """Start options of p2pd.

    ``host`` is the IPv4 address to listen on, ``port`` its TCP port (0: any free one). ``announce``
    are the multiaddresses to announce instead of the listen address. A ``hidden`` node is
    presumably behind NAT: it is a DHT client, and tries hole punching with peers that connect
    through a relay. (``p2pd`` alone detects NAT only after minutes.)
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
    """A running p2pd whose control socket responds."""

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

        Raises ``P2pdError`` after at most ``START_ATTEMPTS`` attempts.
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
        """Wait until the child exits; return its exit code (negative: signal number)."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Terminate the child, and kill it after ``STOP_SECONDS``."""
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
        """Drain the pipe; keep the last lines for start errors and debugging."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than the reader's limit: dropped
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            log.debug("p2pd: %s", text)
            if text.startswith("Peer ID:"):
                self._ready.set()


def _arguments(identity_path: Path, control_path: Path, options: P2pdOptions) -> list[str]:
    """Return the command line arguments.

    TLS only: it has 1.2 times the throughput of Noise, and Go's default hosts accept both. The
    Kademlia server finds addresses of peers by id. ``autonat`` enables hole punching.
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
    """Raise ``P2pdError`` when the port is in use.

    p2pd binds with SO_REUSEPORT (needed for hole punching). A second p2pd of the same user would
    therefore start without an error and receive half of the connections.
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
