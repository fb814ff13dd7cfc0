"""HTTP client against foreign servers, and against ours through the exchange."""

import asyncio
import re
from contextlib import aclosing, asynccontextmanager

import pytest

from node.network.blobs import transport_choice
from node.network.blobs.config import ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.network.blobs.transport_choice import (
    OTHER_WAY_REQUESTS,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    BlobTransport,
    TransportChooser,
)
from node.network.blobs.wire import BlobKind, BlobRefusedError, BlobStatus
from node.network.http import client as http_client
from node.network.http.application import ResponseLimits
from node.network.http.client import HttpClient
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.protocols import BLOBS
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.weights.download import RemoteWeights, WeightsDownload
from protocol.core.faults import FaultCode
from protocol.core.types import PeerId, RunId
from protocol.shardcast.forest import ForestMember
from roles.ports.storage import Purpose
from roles.ports.transport import TransportError
from tests.node.network.http.faces import BODY, DATA, DIGEST, HOST, WEIGHTS, face
from tests.worlds.network import eventually
from tests.worlds.socket_streams import SocketStreams

PEER = PeerId("two")
OK = b"HTTP/1.1 206 Partial Content\r\ncontent-length: 1000\r\ncontent-range: bytes 100-1099/700001"
LENGTH = len(DATA)
WEIGHT = BlobKind.WEIGHTS
WHOLE = (
    f"HTTP/1.1 206 Partial\r\nContent-Length: {LENGTH}\r\n"
    f"Content-Range: bytes 0-{LENGTH - 1}/{LENGTH}\r\n\r\n"
).encode()
GOOD = OK + b"\r\n\r\n" + DATA[100:1100]


class Requests(list):
    """Received requests, with the server's ends of all connections."""

    def __init__(self):
        super().__init__()
        self.connections = []

    @property
    def open(self):
        return [each for each in self.connections if not each.is_closing()]


@asynccontextmanager
async def impostor(answer, *, hang=False, chunks=None):
    """Server that sends ``answer`` to any request."""
    asked = Requests()

    async def serve(reader, writer):
        asked.connections.append(writer)
        try:
            while True:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
                await writer.drain()
                for chunk in chunks or ():
                    writer.write(chunk)
                    await writer.drain()
                if hang:
                    await asyncio.sleep(60)
                elif chunks is None and answer != GOOD:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()


def client():
    return HttpClient(lambda peer: HOST if peer == PEER else None)


async def take(http, port, *, wait=False):
    body = await http.open(PEER, port, DIGEST, 100, 1000, wait=wait)
    try:
        return await body.read_exactly(600) + await body.read_exactly(400)
    finally:
        await body.close()
        await body.close()


async def test_a_range_is_taken_and_its_connection_used_again():
    async with impostor(GOOD) as (port, asked):
        http = client()
        for _ in range(3):
            assert await take(http, port) == DATA[100:1100]
        assert len(asked.connections) == len(asked.open) == 1
        lines = asked[0].decode().split("\r\n")
        assert lines[0] == f"GET /blobs/{DIGEST.hex()} HTTP/1.1"
        assert "Range: bytes=100-1099" in lines and "Prefer: wait" not in lines
        http.close()
        await eventually(lambda: not asked.open, 60)


async def test_a_connection_that_was_closed_meanwhile_costs_nothing():
    async with impostor(GOOD) as (port, asked):
        http = client()
        await take(http, port)
        asked.connections[0].transport.abort()
        assert await take(http, port) == DATA[100:1100]
        http.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00" * 100,
        b"HTTP/1.1 206\r\n",
        b"HTTP/1.0 206 OK\r\n" + OK.partition(b"\r\n")[2] + b"\r\n\r\n" + bytes(1000),
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + bytes(1000),
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD,
        OK.replace(b"length: 1000", b"length: 999") + b"\r\n\r\n" + bytes(999),
        OK.replace(b"length: 1000", b"length: 100000000000") + b"\r\n\r\n",
        OK + b"\r\ncontent-length: 5\r\n\r\n" + bytes(1000),
        OK.replace(b"100-1099", b"0-999") + b"\r\n\r\n" + bytes(1000),
        OK.replace(b"/700001", b"/*") + b"\r\n\r\n" + bytes(1000),
        OK + b"\r\ntransfer-encoding: chunked\r\n\r\n" + bytes(1000),
        OK + b"\r\ncontent-encoding: gzip\r\n\r\n" + bytes(1000),
        OK + b"\r\nx: " + b"y" * 5000 + b"\r\n\r\n" + bytes(1000),
        OK + b"\r\n\r\n" + bytes(999),
    ],
)
async def test_any_other_answer_is_a_broken_transport(answer):
    async with impostor(answer) as (port, asked):
        http = client()
        with pytest.raises(TransportError) as caught:
            await take(http, port)
        assert not isinstance(caught.value, BlobRefusedError)
        assert len(asked) == 1
        with pytest.raises(TransportError):
            await take(http, port)
        assert len(asked.connections) == len(asked) == 2, "its connection is not used again"


@pytest.mark.parametrize(
    ("code", "status"),
    [(404, BlobStatus.UNKNOWN), (503, BlobStatus.BUSY), (429, BlobStatus.BUSY)],
)
async def test_refusals_say_why(code, status):
    async with impostor(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % code) as (port, _):
        with pytest.raises(BlobRefusedError) as caught:
            await take(client(), port)
        assert caught.value.status is status


async def test_a_connection_that_brought_a_refusal_is_used_again(tmp_path):
    async with face(tmp_path) as served:
        http = client()
        for _ in range(3):
            with pytest.raises(BlobRefusedError):
                await take(http, served.port)
        assert served.server.rate_limiter.connections[HOST] == 1
        http.close()


async def test_a_head_without_an_end_takes_bounded_memory():
    line = b"x-filler: " + b"y" * 65_000 + b"\r\n"
    async with impostor(OK + b"\r\n", chunks=[line] * 1000) as (port, _):
        http = client()
        with pytest.raises(TransportError, match="head"):
            await take(http, port)


async def test_a_silent_server_costs_its_deadline(monkeypatch):
    monkeypatch.setattr(http_client, "HEAD_SECONDS", 0.2)
    async with impostor(b"HTTP/1.1 206", hang=True) as (port, _):
        with pytest.raises(TransportError, match="timed out"):
            await take(client(), port)


async def test_ports_of_the_system_and_peers_without_a_host_are_not_dialled(monkeypatch):
    dialled = []

    async def connect(_protocol, *address):
        dialled.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    for peer, port in [(PEER, 0), (PEER, 22), (PEER, 1023), (PeerId("unknown"), 8000)]:
        with pytest.raises(TransportError):
            await client().open(peer, port, DIGEST, 0, 1, wait=False)
    assert not dialled
    assert client().reaches(PEER) and not client().reaches(PeerId("unknown"))
    with pytest.raises(TransportError):
        await take(client(), 1024)
    assert dialled == [(HOST, 1024)]


async def test_few_idle_connections_are_kept():
    async with impostor(GOOD) as (port, asked):
        http = client()
        opened = [http.open(PEER, port, DIGEST, 100, 1000, wait=False) for _ in range(20)]
        bodies = await asyncio.gather(*opened)
        for body in bodies:
            await body.read_exactly(1000)
            await body.close()
        assert len(asked.connections) == 20
        await eventually(lambda: len(asked.open) <= http_client.IDLE_PER_ADDRESS, 60)
        for _ in range(3):
            await take(http, port)
        assert len(asked.open) == http_client.IDLE_PER_ADDRESS
        http.close()


# Choice of transport


def test_the_faster_way_is_taken_and_the_other_tried_now_and_then():
    seen = TransportChooser()
    assert seen.choose(PEER, 0.0) is BlobTransport.HTTP
    for _ in range(20):
        seen.delivered(PEER, BlobTransport.HTTP, 1000, 1.0)
        seen.delivered(PEER, BlobTransport.STREAM, 5000, 1.0)
    chosen = [seen.choose(PEER, 0.0) for _ in range(2 * OTHER_WAY_REQUESTS)]
    assert chosen.count(BlobTransport.HTTP) == 2
    seen.delivered(PEER, BlobTransport.HTTP, 9000, 1.0)
    chosen = [seen.choose(PEER, 0.0) for _ in range(2 * OTHER_WAY_REQUESTS)]
    assert chosen.count(BlobTransport.STREAM) == 2


def test_one_slow_request_decides_nothing_and_many_do():
    seen = TransportChooser()
    seen.delivered(PEER, BlobTransport.HTTP, 2000, 1.0)
    seen.delivered(PEER, BlobTransport.STREAM, 1000, 1.0)
    seen.delivered(PEER, BlobTransport.HTTP, 1, 60.0)
    assert seen.choose(PEER, 0.0) is BlobTransport.HTTP
    for _ in range(20):
        seen.delivered(PEER, BlobTransport.HTTP, 1, 60.0)
    assert seen.choose(PEER, 0.0) is BlobTransport.STREAM


def test_http_that_fails_is_left_alone_for_ever_longer():
    seen, now, pauses = TransportChooser(), 0.0, []
    for _ in range(15):
        seen.failed(PEER, now)
        seen.failed(PEER, now)  # two concurrent requests
        start = now
        while seen.choose(PEER, now) is BlobTransport.STREAM:
            now += 1.0
        pauses.append(now - start)
    assert pauses[0] == PAUSE_SECONDS_MIN and pauses[1] == 2 * PAUSE_SECONDS_MIN
    assert pauses[-1] == PAUSE_SECONDS_MAX
    seen.delivered(PEER, BlobTransport.HTTP, 1, 1.0)
    seen.failed(PEER, now)
    assert seen.choose(PEER, now + PAUSE_SECONDS_MIN) is BlobTransport.HTTP


def test_few_peers_are_remembered():
    seen = TransportChooser()
    for number in range(transport_choice.PEERS_MAX + 10):
        seen.choose(PeerId(str(number)), 0.0)
    assert [len(table) for table in seen.tables] == [transport_choice.PEERS_MAX]


# Through the exchange: a stream delivers the bytes that HTTP does not


class Pair:
    """One fetching node, and one with a blob store behind streams and an HTTP port."""

    def __init__(self, directory, blobs, port, mine=None):
        self.directory = directory
        self.http = client()
        self.transports = {}
        self.one = self.exchange(PeerId("one"), mine, port)
        self.two = self.exchange(PEER, blobs, 0)

    def exchange(self, peer, blobs, port):
        self.transports[peer] = SocketStreams(self.directory, peer)
        return BlobExchange(
            self.transports[peer],
            blobs,
            protocol=BLOBS.on(RunId(b"run")),
            limits=ExchangeLimits(open_seconds=1.0, stall_seconds=1.0),
            http=self.http,
            http_port=lambda _peer: port,
        )

    async def pull(self, offset=0, length=LENGTH, **options):
        pieces = self.one.fetch_range(
            PEER,
            DIGEST,
            offset,
            length,
            piece_bytes=100_000,
            **{"kind": BlobKind.WEIGHTS, **options},
        )
        async with aclosing(pieces):
            return b"".join([bytes(piece) async for piece in pieces])

    async def stop(self):
        await self.transports[PEER].stop()

    @property
    def by_stream(self):
        return self.two.sent.total()


@asynccontextmanager
async def pair(directory, port=None, mine=None, **options):
    async with face(directory, **options) as served:
        await served.blobs.put(DATA, WEIGHTS)
        both = Pair(directory, served.blobs, served.port if port is None else port, mine)
        await both.two.start()
        try:
            yield both, served
        finally:
            both.http.close()
            await both.stop()
            await asyncio.sleep(0.05)


async def test_weights_come_by_http_and_bodies_by_streams(tmp_path):
    async with pair(tmp_path) as (both, served):
        assert await both.pull() == DATA
        await eventually(lambda: served.sent.total() >= len(DATA))  # counted after sending
        assert (both.by_stream, served.sent.total()) == (0, len(DATA))
        assert both.one.received[BlobKind.WEIGHTS] == len(DATA)
        assert await both.pull(kind=BlobKind.BODY) == DATA
        assert (both.by_stream, served.sent.total()) == (len(DATA), len(DATA))


async def test_each_piece_tells_by_which_way_it_came(tmp_path):
    async with pair(tmp_path) as (both, _served):
        heard = []
        for kind in (BlobKind.WEIGHTS, BlobKind.BODY):
            await both.pull(kind=kind, on_piece=lambda *piece: heard.append(piece))
        lengths = [min(100_000, len(DATA) - at) for at in range(0, len(DATA), 100_000)]
        assert heard == [
            (way, length)
            for way in (BlobTransport.HTTP, BlobTransport.STREAM)
            for length in lengths
        ]
        received = both.one.received
        assert (
            received.by(BlobKind.WEIGHTS, BlobTransport.HTTP)
            == received.by(BlobKind.BODY, BlobTransport.STREAM)
            == len(DATA)
        )
        assert received.total() == 2 * len(DATA)
        assert {name: party.ways for name, party in received.parties.items()} == {
            PEER: {BlobTransport.HTTP: len(DATA), BlobTransport.STREAM: len(DATA)}
        }


async def test_blob_refused_by_http_is_fetched_by_stream_and_http_avoided(tmp_path):
    async with pair(tmp_path) as (both, served):
        await served.blobs.put(DATA, BODY)
        await served.blobs.release(WEIGHTS)
        assert await both.pull() == DATA
        assert both.by_stream == len(DATA)
        await served.blobs.put(DATA, WEIGHTS)
        assert await both.pull() == DATA
        assert (both.by_stream, served.sent.total()) == (2 * len(DATA), 0)


async def test_blob_refused_by_both_transports_does_not_count_against_http(tmp_path):
    async with pair(tmp_path) as (both, served):
        await served.blobs.release(WEIGHTS)
        with pytest.raises(BlobRefusedError) as caught:
            await both.pull()
        assert caught.value.status is BlobStatus.UNKNOWN
        await served.blobs.put(DATA, WEIGHTS)
        assert await both.pull() == DATA
        assert both.by_stream == 0


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_port_that_closes_in_the_middle_costs_no_byte_twice(tmp_path, after):
    async with pair(tmp_path, cap=UploadScheduler(1_000_000)) as (both, served):
        if not after:
            await served.server.stop()
        pieces = both.one.fetch_range(PEER, DIGEST, 0, LENGTH, piece_bytes=50_000, kind=WEIGHT)
        taken = []
        async with aclosing(pieces):
            async for piece in pieces:
                taken.append(bytes(piece))
                if len(taken) == after:
                    await served.server.stop()
        assert b"".join(taken) == DATA
        assert both.one.received[WEIGHT] == LENGTH
        assert LENGTH - both.by_stream >= after * 50_000
        assert both.by_stream > 100_000


async def test_a_server_that_breaks_off_is_followed_by_the_stream_where_it_stopped(tmp_path):
    async with (
        impostor(WHOLE + DATA[:250_000]) as (port, asked),
        pair(tmp_path, port) as (both, _),
    ):
        assert await both.pull() == DATA
        assert both.by_stream == LENGTH - 200_000  # whole pieces count
        assert await both.pull() == DATA
        assert len(asked) == 1


async def test_a_stalled_server_is_given_up_and_the_stream_goes_on(tmp_path):
    async with (
        impostor(WHOLE + DATA[:150_000], hang=True) as (port, _),
        pair(tmp_path, port) as (both, _),
    ):
        assert await both.pull() == DATA
        assert both.by_stream == LENGTH - 100_000


async def serve_wrong_bytes(reader, writer):
    """Answer every range as requested, with one bit changed."""
    try:
        while True:
            asked = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, last = map(int, re.search(r"bytes=([0-9]+)-([0-9]+)", asked).groups())
            part = bytearray(DATA[first : last + 1])
            part[0] ^= 1
            head = (
                f"HTTP/1.1 206 Partial\r\nContent-Length: {len(part)}\r\n"
                f"Content-Range: bytes {first}-{last}/{LENGTH}\r\n\r\n"
            )
            writer.write(head.encode() + part)
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def test_a_face_that_sends_wrong_bytes_is_named_and_nothing_of_it_stays(tmp_path):
    hostile = await asyncio.start_server(serve_wrong_bytes, HOST, 0)
    blobs = FileBlobs(tmp_path / "mine")
    async with pair(tmp_path, hostile.sockets[0].getsockname()[1], blobs) as (both, served):
        files = PolicyDirectory(tmp_path / "ours", tmp_path / "g", tmp_path / "t", blobs)
        source = tmp_path / "source"
        source.write_bytes(DATA)
        stored = await served.blobs.put_file(source, LENGTH, 100_000, Purpose.WEIGHTS)
        sizes = stored.index_bytes, stored.total_bytes
        blamed = asyncio.get_running_loop().create_future()
        download = WeightsDownload(
            both.one,
            blobs,
            files,
            RemoteWeights(stored.digest, stored.digest, *sizes, PEER),
            [ForestMember(PEER, 0, reachable=True)],
            stripes=1,
            fanout=2,
            on_blame=lambda peer, fault: blamed.done() or blamed.set_result((peer, fault.code)),
        )
        running = asyncio.create_task(download.run(files.weights(0)))
        async with asyncio.timeout(60):
            assert await blamed == (PEER, FaultCode.BAD_CHUNK)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not blobs.has(DIGEST) and files.size(files.weights(0)) is None
    hostile.close()


async def test_a_busy_face_sends_its_peers_to_streams(tmp_path):
    async with pair(tmp_path, responses=ResponseLimits(per_address=0)) as (both, served):
        assert await both.pull() == DATA
        assert (both.by_stream, served.sent.total()) == (len(DATA), 0)
