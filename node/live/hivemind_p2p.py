"""Live ``Transport``: a supervised p2pd, rebuilt after each crash.

hivemind does not detect a crash of p2pd; its calls then block forever. This module therefore owns
the child and gives each request a deadline (``control``). After a crash it restarts p2pd with the
same port and identity, registers the handlers, redials peers, and calls the restart hooks.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from hivemind.p2p import P2PDaemonError
from typing_extensions import override

from node.live.control import (
    STREAM_BUFFER_BYTES,
    AttachedP2P,
    P2pdControl,
    P2pStream,
    close_writer,
    read_stream_header,
)
from node.live.p2pd import P2pd, P2pdOptions
from node.live.tls_probe import key_at
from node.local.sockets import SocketDirectory
from node.network.streams.deadline import loop_time
from protocol.core.containers import BoundedDict
from protocol.core.crypto import Identity, public_key_from_peer_id
from protocol.core.types import PeerId
from roles.ports.transport import Stream, StreamHandler, Transport, TransportError

log = logging.getLogger(__name__)

INBOUND_STREAMS_MAX = 2048
"""Concurrent inbound streams; p2pd has no limit. A guess: 512 peers with four streams each."""

INBOUND_STREAMS_PER_PEER_MAX = 64
"""A guess: gossip needs one, a bulk transfer eight, verdicts one each for a moment."""

ATTACH_SECONDS = 10.0
REMEMBERED_PEERS_MAX = 256
RECONNECT_SECONDS = 5.0
"""Maximum wait for redialled peers before the restart hooks run."""

RESTART_SECONDS_MIN = 0.1
RESTART_SECONDS_MAX = 30.0
KEPT_SECONDS = 60.0
"""Interval at which peers are tagged again: p2pd forgets the tag of a disconnected peer."""

STABLE_SECONDS = 60.0
"""Minimum lifetime of a p2pd that is restarted without backoff."""


class HivemindTransport(Transport):
    """``roles.ports.Transport`` over p2pd; use ``create`` and ``close``."""

    circuits = True

    def __init__(self, identity: Identity, identity_path: Path, options: P2pdOptions) -> None:
        self._identity = identity
        self._identity_path = identity_path
        self._options = options
        self._sockets = SocketDirectory()
        self._control = P2pdControl(self._sockets.path / "control.sock")
        self._streams_path = self._sockets.path / "streams.sock"
        self._server: asyncio.Server | None = None
        self._daemon: P2pd | None = None
        self._p2p: AttachedP2P | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._handlers: dict[str, StreamHandler] = {}
        self._registering = asyncio.Lock()
        self._dialled = BoundedDict[PeerId, str](REMEMBERED_PEERS_MAX)
        self._hosts: dict[PeerId, str | None] = {}
        self._kept: dict[PeerId, float] = {}
        """Peers that p2pd prunes last, and the time of their last tag."""
        self._inbound: dict[asyncio.Task[None], None] = {}
        self._inbound_by_peer: Counter[PeerId] = Counter()
        self._hooks: list[Callable[[], Awaitable[None]]] = []

    @classmethod
    async def create(
        cls,
        identity: Identity,
        identity_path: Path,
        options: P2pdOptions | None = None,
    ) -> "HivemindTransport":
        """Start p2pd with the key in ``identity_path`` and listen.

        Raises ``TransportError`` when p2pd does not start, ``ValueError`` when the file does not
        hold ``identity`` or when addresses are announced without a fixed port.
        """
        options = options or P2pdOptions()
        if options.announce and not options.port:
            raise ValueError("announced addresses need a fixed listen port")
        _require_key(identity_path, identity)
        transport = cls(identity, identity_path, options)
        try:
            transport._server = await asyncio.start_unix_server(
                transport._accept, transport._streams_path, limit=STREAM_BUFFER_BYTES
            )
            await transport._launch()
        except BaseException:
            await transport.close()
            raise
        transport._supervisor = asyncio.create_task(transport._supervise())
        return transport

    @property
    @override
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    @property
    def hidden(self) -> bool:
        """True if this node is presumably behind NAT."""
        return self._options.hidden

    @property
    def p2pd_pid(self) -> int | None:
        """Process id of the child, or None between two."""
        return None if self._daemon is None else self._daemon.pid

    @property
    def p2p(self) -> Any:
        """Client of the present child, for hivemind; raises ``TransportError`` between two.

        It ends with the child: read it again after each restart.
        """
        if self._p2p is None:
            raise TransportError("p2pd is being restarted")
        return self._p2p

    def on_restart(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Call ``hook`` after each restart, when handlers and connections are restored."""
        self._hooks.append(hook)

    @override
    async def addresses(self) -> list[str]:
        return [f"{address}/p2p/{self.peer_id}" for address in await self._control.addresses()]

    @override
    async def connect(self, address: str) -> PeerId:
        base, separator, name = address.rpartition("/p2p/")
        if not separator or not base or public_key_from_peer_id(name) is None:
            raise TransportError(f"not of the form /ip4/…/tcp/…/p2p/12D3KooW…: {address}")
        peer = PeerId(name)
        await self._control.connect(peer, base)
        self._dialled.set_newest(peer, address)
        return peer

    @override
    async def disconnect(self, peer: PeerId) -> None:
        self._dialled.pop(peer, None)
        if peer in await self._control.peers():
            await self._control.disconnect(peer)

    @override
    async def keep(self, peers: Collection[PeerId]) -> None:
        now = loop_time()
        for peer in self._kept.keys() - set(peers):
            self._kept.pop(peer, None)  # may have been cleared meanwhile
            await self._control.keep(peer, kept=False)
        for peer in peers:
            if now >= self._kept.get(peer, -KEPT_SECONDS) + KEPT_SECONDS:
                await self._control.keep(peer, kept=True)
                self._kept[peer] = now

    @override
    async def peers(self) -> list[PeerId]:
        self._hosts = await self._control.peers()
        return list(self._hosts)

    def host_of(self, peer: PeerId) -> str | None:
        """Return a peer's remote IPv4 address as of the last poll, or None."""
        return self._hosts.get(peer)

    @override
    async def remote_addresses(self, peer: PeerId) -> list[str]:
        return await self._control.remote_addresses(peer)

    @override
    async def probe(self, address: str) -> None:
        base, _, name = address.rpartition("/p2p/")
        if name != await key_at(base):
            raise TransportError(f"{address} is answered by another key")

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        return await self._control.open_stream(peer, protocol)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        async with self._registering:
            if protocol in self._handlers:
                raise ValueError(f"{protocol} has a handler")
            if self._p2p is not None:  # otherwise the pending launch registers it
                await self._control.register(protocol, self._streams_path)
            self._handlers[protocol] = handler

    async def close(self) -> None:
        """Stop serving, stop p2pd and remove the sockets; idempotent."""
        tasks: list[asyncio.Task[None]] = list(self._inbound)
        if self._supervisor is not None:
            tasks.append(self._supervisor)
        if self._server is not None:
            self._server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._detach()
        if self._daemon is not None:
            await self._daemon.stop()
            self._daemon = None
        self._sockets.close()

    async def _launch(self) -> None:
        """Start p2pd and attach to it; raises ``TransportError``."""
        daemon = await P2pd.start(self._identity_path, self._sockets.path, self._options)
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await self._attach()
        except BaseException as error:
            await self._detach()
            await daemon.stop()
            if isinstance(error, OSError | EOFError | P2PDaemonError):  # OSError includes timeouts
                raise TransportError(f"p2pd started but does not answer: {error}") from error
            raise
        self._daemon = daemon

    async def _attach(self) -> None:
        """Open the persistent connection, read the port, register all handlers."""
        async with self._registering:
            self._p2p = await AttachedP2P.attach(
                self._sockets.path / "control.sock", self._sockets.path / "client.sock"
            )
            if not self._options.port:
                port = _tcp_port(await self._control.addresses())
                self._options = replace(self._options, port=port)
            for protocol in self._handlers:
                await self._control.register(protocol, self._streams_path)

    async def _detach(self) -> None:
        if self._p2p is not None:
            p2p, self._p2p = self._p2p, None
            await p2p.shutdown()

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause_seconds = 0.0
        while True:
            assert self._daemon is not None
            started = loop.time()
            code = await self._daemon.exited()
            log.warning("p2pd exited with code %d; starting it again", code)
            self._daemon = None
            self._kept.clear()
            await self._detach()
            if loop.time() - started > STABLE_SECONDS:
                pause_seconds = 0.0
            while self._daemon is None:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(
                    max(2 * pause_seconds, RESTART_SECONDS_MIN), RESTART_SECONDS_MAX
                )
                try:
                    await self._launch()
                except TransportError as error:
                    log.warning("%s; trying again in %.1f s", error, pause_seconds)
            await self._recover()

    async def _recover(self) -> None:
        """Redial the peers, then call the restart hooks."""
        dials = [
            asyncio.create_task(self._redial(address)) for address in list(self._dialled.values())
        ]
        if dials:
            _, late = await asyncio.wait(dials, timeout=RECONNECT_SECONDS)
            for task in late:
                task.cancel()
        for hook in self._hooks:
            try:
                await hook()
            except Exception:
                log.exception("a restart hook failed")

    async def _redial(self, address: str) -> None:
        try:
            await self.connect(address)
        except TransportError as error:
            log.info("reconnect to %s failed: %s", address, error)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._inbound[task] = None
        task.add_done_callback(self._inbound.pop)
        # A task cancelled before its first step does not close the writer.
        task.add_done_callback(lambda _task: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            header = await read_stream_header(reader)
            if header is None or not self._has_room(header[0]):
                return
            peer, protocol = header
            handler = self._handlers.get(protocol)
            if handler is None:
                return
            self._inbound_by_peer[peer] += 1
            try:
                await handler(P2pStream(peer, reader, writer))
            except TransportError as error:
                log.debug("%s stream of %s: %s", protocol, peer, error)
            except Exception:
                log.exception("the handler of %s failed", protocol)
            finally:
                self._inbound_by_peer[peer] -= 1
                if not self._inbound_by_peer[peer]:
                    del self._inbound_by_peer[peer]
        finally:
            await close_writer(writer)

    def _has_room(self, peer: PeerId) -> bool:
        return (
            len(self._inbound) <= INBOUND_STREAMS_MAX
            and self._inbound_by_peer[peer] < INBOUND_STREAMS_PER_PEER_MAX
        )


def _require_key(path: Path, identity: Identity) -> None:
    if path.read_bytes() != identity.to_protobuf():
        raise ValueError(f"{path} does not hold the key of {identity.peer_id}")


def _tcp_port(addresses: list[str]) -> int:
    """Return p2pd's listen port; raises ``TransportError`` without one."""
    for address in addresses:
        parts = address.split("/")
        if "tcp" in parts:
            return int(parts[parts.index("tcp") + 1])
    raise TransportError("p2pd listens on no TCP port")
