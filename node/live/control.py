"""Client of p2pd's control socket, and the byte streams that it opens.

One connection per request, each with a deadline and always closed. The messages are hivemind's
``p2pd.proto``. An opened stream reuses its control connection as a pipe.
"""

import asyncio
import logging
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import base58
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.proto.dht_pb2 import FindRequest
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr
from typing_extensions import override

from node.live.p2pd import MESSAGE_BYTES_MAX
from node.local.addresses import CIRCUIT
from node.network.resources.dht_call_limiter import DhtCallLimiter
from protocol.core.crypto import PEER_ID_PREFIX, public_key_from_peer_id
from protocol.core.types import PeerId
from roles.ports.transport import Stream, TransportError

# hivemind logs to stderr by default; route its warnings through the daemon's handlers.
use_hivemind_log_handler("nowhere")
logging.getLogger("hivemind").setLevel(logging.WARNING)

_KEPT_TAG = "kept"
_KEPT_WEIGHT = 100
"""p2pd prunes connections with the smallest sum of tag weights first; without a tag it is 0."""

CONTROL_SECONDS = 5.0
"""Deadline of a local request, which takes about 1 ms."""

DIAL_SECONDS = 15
"""Deadline of a request that reaches another peer: go-libp2p allows 5 s per dial, and an address
lookup may precede it."""

STREAM_BUFFER_BYTES = 1 << 18
"""Read buffer per stream; reading pauses at twice this size (backpressure)."""

CLOSE_SECONDS = 5.0
KEYS_PER_CALL_MAX = 256
"""Directory keys per call: a neighbour may transfer its whole storage."""

KEYS_PER_SEARCH_MAX = 4
"""A search requests one key; each reply may contain all records of a key."""

REPLY_BYTES_MAX = MESSAGE_BYTES_MAX - 1024
_ERROR_CHARACTERS_MAX = 200
_DIAL_FAILURES = (
    "connection refused",
    "i/o timeout",
    "no route to host",
    "network is unreachable",
)
"""Error texts of Go and the system."""

_IP4_CODE = 4
_TCP_CODE = 6
_P2P_CODE, _CIRCUIT_CODE = bytes.fromhex("a503"), bytes.fromhex("a202")
"""Multicodec codes; the last two as varints."""


class AttachedP2P(P2P):  # type: ignore[misc]  # hivemind is untyped
    """hivemind's client of a p2pd that this node owns; holds the persistent connection."""

    calls: DhtCallLimiter
    """Limits of inbound calls."""

    @classmethod
    async def attach(cls, control_path: Path, client_path: Path) -> "AttachedP2P":
        """Connect like ``P2P.replicate``, with our own socket directory and message limit."""
        self = cls()
        self._alive = True
        self.calls = DhtCallLimiter()
        self._daemon_listen_maddr = Multiaddr(f"/unix{control_path}")
        self._client_listen_maddr = Multiaddr(f"/unix{client_path}")
        self._client = await Client.create(
            self._daemon_listen_maddr,
            self._client_listen_maddr,
            persistent_conn_max_msg_size=MESSAGE_BYTES_MAX,
        )
        await self._ping_daemon()
        return self

    async def _add_protobuf_unary_handler(
        self, name: str, handler: Any, request_type: Any, *, balanced: bool = False
    ) -> None:
        """Register a unary handler with limits; the base class calls this.

        A request for 40,000 keys, or 256 times for a full one, fits into a message and blocks the
        loop for seconds. A reply above the limit fails inside hivemind, which then never frees it.
        Requests to call back are refused: the caller would control their duration.
        """
        keys_max = KEYS_PER_SEARCH_MAX if request_type is FindRequest else KEYS_PER_CALL_MAX

        async def bounded(request: Any, context: Any) -> Any:
            peer = PeerId(context.remote_id.to_base58())
            keys = getattr(request, "keys", ())
            if len(keys) > keys_max or len(set(keys)) < len(keys):
                self.calls.reject(peer, "too many keys in one call")
            if getattr(request, "validate", False):
                self.calls.reject(peer, "call-back is not supported")
            reply = await self.calls.serve(
                peer, request.ByteSize(), lambda: handler(request, context)
            )
            if reply.ByteSize() > REPLY_BYTES_MAX:
                raise ValueError("the reply is too large")
            return reply

        await super()._add_protobuf_unary_handler(name, bounded, request_type, balanced)


class P2pStream(Stream):
    """``roles.ports.Stream`` over a pipe to p2pd."""

    def __init__(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._peer = peer
        self._reader = reader
        self._writer = writer

    @property
    @override
    def peer(self) -> PeerId:
        return self._peer

    @override
    async def read(self, bytes_max: int) -> bytes:
        try:
            return await self._reader.read(bytes_max)
        except OSError as error:
            raise TransportError(f"stream broke: {error}") from error

    @override
    async def read_exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            got = len(error.partial)
            raise TransportError(f"stream ended after {got} of {count} bytes") from error
        except OSError as error:
            raise TransportError(f"stream broke: {error}") from error

    @override
    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise TransportError("stream is closed")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:  # uvloop: RuntimeError on a handle just closed
            raise TransportError(f"stream broke: {error}") from error

    @override
    def offer(self, data: bytes) -> bool:
        if self._writer.is_closing() or self._writer.transport.get_write_buffer_size():
            return False
        try:
            self._writer.write(data)
        except (OSError, RuntimeError):  # the caller falls back to ``write``, which raises
            return False
        return True

    async def close(self) -> None:
        """Flush and close; bytes unread by the peer after ``CLOSE_SECONDS`` are dropped."""
        await close_writer(self._writer)


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Close within ``CLOSE_SECONDS``, then abort; raises nothing except cancellation."""
    try:
        writer.close()
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    except (OSError, RuntimeError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


class P2pdControl:
    """Requests to one p2pd."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connect(self, peer: PeerId, address: str) -> None:
        """Dial ``peer`` at a multiaddress without its ``/p2p`` part; raises ``TransportError``."""
        address_bytes = binary_address(address)
        request = p2pd_pb2.ConnectRequest(
            peer=base58.b58decode(peer), addrs=[address_bytes], timeout=DIAL_SECONDS
        )
        try:
            await self._call(
                p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=request), DIAL_SECONDS
            )
        except _RequestError as error:
            raise TransportError(dial_failure(error.text, address)) from None

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to ``peer``; raises ``TransportError``."""
        request = p2pd_pb2.DisconnectRequest(peer=base58.b58decode(peer))
        await self._call(
            p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=request), CONTROL_SECONDS
        )

    async def keep(self, peer: PeerId, *, kept: bool) -> None:
        """Have p2pd prune connections to ``peer`` last, or not; raises ``TransportError``."""
        kind = p2pd_pb2.ConnManagerRequest
        request = kind(
            type=kind.TAG_PEER if kept else kind.UNTAG_PEER,
            peer=base58.b58decode(peer),
            tag=_KEPT_TAG,
            weight=_KEPT_WEIGHT,
        )
        await self._call(
            p2pd_pb2.Request(type=p2pd_pb2.Request.CONNMANAGER, connManager=request),
            CONTROL_SECONDS,
        )

    async def addresses(self) -> list[str]:
        """Return the multiaddresses that p2pd announces, without ``/p2p``."""
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY)
        response = await self._call(request, CONTROL_SECONDS)
        return [str(Multiaddr(address)) for address in response.identify.addrs]

    async def peers(self) -> dict[PeerId, str | None]:
        """Return the connected peers with Ed25519 ids, and the remote IPv4 address of each.

        None for a connection that is not plain TCP over IPv4.
        """
        found: dict[PeerId, str | None] = {}
        for info in await self._connections():
            peer = peer_id_from_bytes(info.id)
            if peer is not None:
                hosts = filter(None, map(ipv4_of, info.addrs))
                found[peer] = next(hosts, None) or found.get(peer)
        return found

    async def remote_addresses(self, peer: PeerId) -> list[str]:
        """Return the remote multiaddresses of the connections to ``peer``."""
        key = base58.b58decode(peer)
        return [
            str(Multiaddr(address))
            for info in await self._connections()
            if info.id == key
            for address in info.addrs
        ]

    async def _connections(self) -> Any:
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS)
        return (await self._call(request, CONTROL_SECONDS)).peers

    async def register(self, protocol: str, socket_path: Path) -> None:
        """Have p2pd connect to ``socket_path`` for each inbound stream of ``protocol``."""
        request = p2pd_pb2.StreamHandlerRequest(
            addr=Multiaddr(f"/unix{socket_path}").to_bytes(), proto=[protocol], balanced=False
        )
        await self._call(
            p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=request),
            CONTROL_SECONDS,
        )

    async def open_stream(self, peer: PeerId, protocol: str) -> P2pStream:
        """Open a stream, dialling if needed; raises ``TransportError``, also if unsupported."""
        request = p2pd_pb2.StreamOpenRequest(
            peer=base58.b58decode(peer), proto=[protocol], timeout=DIAL_SECONDS
        )
        _, reader, writer = await self._exchange(
            p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request), DIAL_SECONDS
        )
        return P2pStream(peer, reader, writer)

    async def _call(self, request: Any, seconds: float) -> Any:
        response, _, writer = await self._exchange(request, seconds)
        writer.transport.abort()
        return response

    async def _exchange(
        self, request: Any, seconds: float
    ) -> tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]:
        """Send one request; return the response and the open connection."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(
                    self._path, limit=STREAM_BUFFER_BYTES
                )
                await write_pbmsg(writer, request)
                response = p2pd_pb2.Response()
                await read_pbmsg_safe(reader, response)
            _require_ok(response)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, TimeoutError):
                raise TransportError(f"no answer within {seconds:g} s") from error
            if isinstance(error, OSError | EOFError):
                raise TransportError(f"p2pd does not answer: {error}") from error
            raise
        return response, reader, writer


async def read_stream_header(reader: asyncio.StreamReader) -> tuple[PeerId, str] | None:
    """Read p2pd's header of an inbound stream: the peer and the protocol.

    None when the stream ends early, or when the peer has no Ed25519 id and so is no member.
    """
    header = p2pd_pb2.StreamInfo()
    with suppress(TimeoutError, OSError, EOFError):
        async with asyncio.timeout(CONTROL_SECONDS):
            await read_pbmsg_safe(reader, header)
        peer = peer_id_from_bytes(header.peer)
        return None if peer is None else (peer, header.proto)
    return None


def peer_id_from_bytes(raw: bytes) -> PeerId | None:
    """Return the base58 form of an Ed25519 peer id, or None for any other id."""
    peer = PeerId(base58.b58encode(raw).decode())
    return None if public_key_from_peer_id(peer) is None else peer


def binary_address(address: str) -> bytes:
    """Return the binary form of a multiaddress, including circuit addresses.

    hivemind encodes a relay's id in a form that Go does not parse. Raises ``TransportError``.
    """
    base, circuit, rest = address.partition(CIRCUIT)
    behind = b""
    if circuit:
        base, _, relay = base.rpartition("/p2p/")
        key = public_key_from_peer_id(relay)
        if key is None or rest:
            raise TransportError(f"not a circuit address: {address}")
        peer = PEER_ID_PREFIX + key
        behind = _P2P_CODE + bytes((len(peer),)) + peer + _CIRCUIT_CODE
    try:
        return bytes(Multiaddr(base).to_bytes()) + behind
    except Exception as error:  # multiaddr's codecs raise whatever their parsers raise
        raise TransportError(f"not a multiaddress: {address}") from error


def ipv4_of(address: bytes) -> str | None:
    """Return the IPv4 address of a binary multiaddress of the form ``/ip4/…/tcp/…``, or None."""
    if len(address) != 8 or address[0] != _IP4_CODE or address[5] != _TCP_CODE:
        return None
    return str(IPv4Address(address[1:5]))


def _require_ok(response: Any) -> None:
    if response.type == p2pd_pb2.Response.ERROR:
        raise _RequestError(" ".join(response.error.msg.split()))


class _RequestError(TransportError):
    """p2pd's error for a failed request, in full in ``text``."""

    def __init__(self, text: str) -> None:
        super().__init__(text[:_ERROR_CHARACTERS_MAX])
        self.text = text


def dial_failure(text: str, address: str) -> str:
    """Return the error of one address from go-libp2p's list of all attempts.

    Empty if the error is only go-libp2p's dial backoff.
    """
    _, _, rest = text.partition(f"* [{address}] ")
    reason = rest.partition(" * [")[0] or text
    for known in _DIAL_FAILURES:
        if known in reason:
            return known
    if "peer id mismatch" in reason:
        return "another key answers there"
    return "" if "dial backoff" in reason else reason[:_ERROR_CHARACTERS_MAX]
