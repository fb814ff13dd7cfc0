import asyncio
import errno
import os
import random
import resource
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from node.local.errors import NodeError
from node.local.sockets import listen
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from node.network.http.application import ResponseLimits
from node.network.http.catalog import PROBE_BYTES, SHARD_BYTES
from node.network.http.rate_limit import ConnectionLimits, HttpRateLimiter
from node.network.resources.upload_scheduler import UploadScheduler
from node.storage import files
from protocol.core import crypto
from protocol.core.containers import table_sizes
from protocol.core.types import Digest, Version
from roles.ports.engines import Policy
from roles.ports.storage import Owner, Purpose
from tests.node.network.http.faces import (
    BLOB,
    BODY,
    DATA,
    DIGEST,
    HOST,
    WEIGHTS,
    exchange,
    face,
    get,
    request,
)
from tests.node.storage.blob_stores import name_of, one_shard, open_one


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


CLOSE = "Connection: close"
CHUNK = 100_000


async def test_a_blob_is_served_whole_in_part_and_not_at_all(tmp_path):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        whole = await get(served.port, BLOB)
        assert (whole.status, whole.body) == (200, DATA)
        assert whole.headers["etag"] == f'"{DIGEST.hex()}"'
        assert "immutable" in whole.headers["cache-control"]
        part = await get(served.port, BLOB, "Range: bytes=300000-600000")
        assert (part.status, part.body) == (206, DATA[300_000:600_001])
        assert part.headers["content-range"] == f"bytes 300000-600000/{len(DATA)}"
        head = await get(served.port, BLOB, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(DATA))
        same = await get(served.port, BLOB, f'If-None-Match: "{DIGEST.hex()}"')
        assert (same.status, same.body) == (304, b"")
        beyond = await get(served.port, BLOB, f"Range: bytes={len(DATA)}-")
        assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{len(DATA)}")
        sent_bytes = served.sent.by(BlobKind.WEIGHTS, BlobTransport.HTTP)
        assert sent_bytes == served.sent.total() == len(DATA) + 300_001
        assert {name: party.ways for name, party in served.sent.parties.items()} == {
            HOST: {BlobTransport.HTTP: sent_bytes}
        }


@pytest.mark.parametrize(
    ("purpose", "status"),
    [
        (Purpose.WEIGHTS, 200),
        (Purpose.RUN_FILE, 200),
        (Purpose.ROLLOUT_BODY, 404),
        (Purpose.OPTIMISER_STATE, 404),
        (Purpose.DIFFERENCE, 404),
    ],
)
async def test_only_weights_and_the_runs_files_are_served(tmp_path, purpose, status):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, Owner(purpose, crypto.digest(b"subject")))
        assert (await get(served.port, BLOB)).status == status


async def test_a_head_request_with_a_body_that_is_none_ends_its_connection_alone(tmp_path):
    """h11 cannot send the reason of a 400 in answer to a HEAD request."""
    failed = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    data = request(BLOB, "Transfer-Encoding: chunked", method="HEAD") + b"no length of a chunk\r\n"
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(HOST, served.port)
            writer.write(data)
            with suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 60)
            writer.close()
        assert (await get(served.port, BLOB)).status == 200
    assert failed == []


async def test_a_blob_is_served_for_as_long_as_something_of_the_run_needs_it(tmp_path):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, BODY)
        await served.blobs.put(DATA, WEIGHTS)
        assert (await get(served.port, BLOB)).status == 200
        await served.blobs.release(WEIGHTS)
        assert (await get(served.port, BLOB)).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/", "/blobs", "/blobs/", f"/blobs/{DIGEST.hex()[:-1]}", f"/blobs/{DIGEST.hex()}0",
        f"/blobs/{DIGEST.hex().upper()}", f"/blobs/{DIGEST.hex()}/", f"//blobs/{DIGEST.hex()}",
        f"/blobs/../blobs/{DIGEST.hex()}", f"/%62lobs/{DIGEST.hex()}", f"{BLOB}%00", f"{BLOB}%0a",
        f"http://x{BLOB}", "/../../etc/passwd", "/v0/shard_00000.bin", "/v0/shard_00003.bin",
        "/v00/shard_00001.bin", "/v-1/shard_00001.bin", "/v0/shard_1.bin", "/v0/shard_000001.bin",
        "/v1/shard_00001.bin", "/v99999999/shard_00001.bin", "/v0/", "/v0", "/data2.bin",
        "/data1.bin/", "/distribution.txt%20", "/v0/shard_00001.bin.partial",
    ],
)  # fmt: skip
async def test_other_paths_are_not_found(tmp_path, path):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        served.policies[Version(0)] = version_at(tmp_path / "v0", bytes(10))
        assert (await get(served.port, path)).status == 404


async def test_bad_requests_are_answered_exactly(tmp_path):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "PROPFIND"):
            reply = await get(served.port, BLOB, method=method)
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        for line in ("Content-Length: 5", "Transfer-Encoding: chunked"):
            assert (await get(served.port, BLOB, line)).status == 413
        for data in (
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",  # no host
            b"GET " + BLOB.encode() + b" HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        ):
            (reply,) = await exchange(served.port, data)
            assert reply.status == 400, data
        assert (await get(served.port, BLOB)).body == DATA


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=200) | st.sampled_from(
    [b"GET ", b"HEAD ", BLOB.encode(), b" HTTP/1.1\r\n", b"Host: x\r\n", b"Range: bytes=", b"-",
     b"0", b"\r\n", b"\r\n\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n",
     b"Connection: upgrade\r\n", b"Transfer-Encoding: chunked\r\n"]), max_size=12))  # fmt: skip
def test_server_survives_any_bytes(tmp_path_factory, pieces):
    directory = tmp_path_factory.mktemp("fuzz")

    async def throw_at_it():
        async with face(directory, responses=ResponseLimits(per_address=1)) as served:
            await served.blobs.put(DATA, WEIGHTS)
            reader, writer = await asyncio.open_connection(HOST, served.port)
            writer.write(b"".join(pieces))
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 60)
            writer.close()
            assert (await get(served.port, BLOB)).body == DATA, "the only slot is free again"

    asyncio.run(throw_at_it())


async def test_requests_of_one_connection_are_answered_in_their_order(tmp_path):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        ranges = [(start * 60_000, start * 60_000 + 59_999) for start in range(10)]
        sent = [request(BLOB, f"Range: bytes={a}-{b}") for a, b in ranges]
        replies = await exchange(served.port, b"".join([*sent, request("/gone", CLOSE)]))
        assert [reply.status for reply in replies] == [206] * 10 + [404]
        assert b"".join(reply.body for reply in replies[:-1]) == DATA[:600_000]


# Arriving blobs


async def arriving(served):
    partial = await open_one(served.blobs, one_shard(DATA, CHUNK))
    return partial, len(partial.missing())


def piece(index):
    return DATA[index * CHUNK : (index + 1) * CHUNK]


async def test_a_range_grows_while_it_arrives(tmp_path):
    async with face(tmp_path) as served:
        partial, count = await arriving(served)
        assert (await get(served.port, BLOB)).status == 404
        assert (await get(served.port, BLOB, method="HEAD")).status == 404
        reader, writer = await asyncio.open_connection(HOST, served.port)
        writer.write(request(BLOB, "Range: bytes=50000-", "Prefer: respond-async, wait=60"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 206 " in head and b"bytes 50000-700000/700001" in head
        taken = 50_000
        for index in range(count):
            waiting = asyncio.ensure_future(reader.readexactly(len(piece(index)) - taken % CHUNK))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            assert await partial.write_chunk(index, piece(index))
            assert await asyncio.wait_for(waiting, 60) == DATA[taken : (index + 1) * CHUNK]
            taken = (index + 1) * CHUNK
        writer.close()
        assert (await get(served.port, BLOB)).body == DATA


async def test_response_of_a_stalled_or_released_blob_ends_and_frees_its_slot(tmp_path):
    limits = ResponseLimits(stall_seconds=0.3, per_address=1)
    async with face(tmp_path, responses=limits) as served:
        partial, _ = await arriving(served)
        await partial.write_chunk(0, piece(0))
        reply = await get(served.port, BLOB, "Prefer: wait")
        assert (reply.status, reply.body) == (200, piece(0))
        waiting = asyncio.ensure_future(get(served.port, BLOB, "Prefer: wait"))
        await asyncio.sleep(0.1)
        name = name_of(one_shard(DATA, CHUNK))
        await served.blobs.release(Owner(Purpose.WEIGHTS, name))
        assert (await waiting).body == piece(0)
        assert (await get(served.port, BLOB)).status == 404, "the only slot is free again"


async def test_client_that_leaves_while_waiting_frees_its_slot(tmp_path):
    async with face(tmp_path, responses=ResponseLimits(per_address=1)) as served:
        await arriving(served)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(HOST, served.port)
            writer.write(request(BLOB, "Prefer: wait"))
            await reader.readuntil(b"\r\n\r\n")
            assert (await get(served.port, "/data1.bin")).status == 503
            writer.close()
            async with asyncio.timeout(60):
                while (await get(served.port, "/data1.bin")).status == 503:  # noqa: ASYNC110 - the server's task ends it
                    await asyncio.sleep(0.01)
        assert (await get(served.port, "/data1.bin")).status == 200


# Limits


async def put_much(served):
    data = bytes(20_000_000)
    digest = await served.blobs.put(data, WEIGHTS)
    return f"/blobs/{digest.hex()}"


@pytest.mark.parametrize("rate", [None, 200_000_000], ids=["no cap", "a cap"])
async def test_a_reader_whose_socket_is_full_again_and_again_gets_every_byte(tmp_path, rate):
    large = random.Random(3).randbytes(24_000_001)
    async with face(tmp_path, cap=UploadScheduler(rate)) as served:
        blob = f"/blobs/{(await served.blobs.put(large, WEIGHTS)).hex()}"
        here = open_descriptors()
        reader, writer = await asyncio.open_connection(HOST, served.port, limit=1 << 16)
        writer.write(request(blob, CLOSE))
        await reader.readuntil(b"\r\n\r\n")
        got, draw = bytearray(), random.Random(4)
        while piece := await reader.read(draw.randrange(1, 1 << 20)):
            got += piece
            if draw.random() < 0.1:
                await asyncio.sleep(0.01)
        writer.close()
        assert got == large
        assert served.sent.total() == len(large)
        await asyncio.sleep(0.05)
        assert open_descriptors() == here


async def test_files_are_read_where_they_cannot_be_sent_as_they_are(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.EINVAL, "not from this file system")

    monkeypatch.setattr(os, "sendfile", refuse)
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        assert (await get(served.port, BLOB)).body == DATA


async def test_a_file_that_lost_its_end_breaks_off_where_it_does(tmp_path):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        (path,) = (tmp_path / "blobs" / "complete").glob(f"*/{DIGEST.hex()}")
        os.truncate(path, 500_000)
        assert (await get(served.port, BLOB)).body == DATA[:500_000]
        path.unlink()
        assert (await get(served.port, BLOB)).body == b""
        assert (await get(served.port, "/distribution.txt")).status == 200


async def test_a_slow_reader_is_cut_off_and_blocks_nobody(tmp_path):
    limits = ConnectionLimits(stall_seconds=0.5)
    async with face(tmp_path, connections=limits) as served:
        path = await put_much(served)
        reader, writer = await asyncio.open_connection(HOST, served.port, limit=4096)
        writer.write(request(path))
        await reader.readuntil(b"\r\n\r\n")
        assert (await get(served.port, "/data1.bin")).status == 200
        await asyncio.sleep(0.2)
        assert served.server.rate_limiter.connections[HOST] == 1
        await asyncio.sleep(1.0)
        assert not served.server.rate_limiter.connections
        assert served.sent[BlobKind.WEIGHTS] < 19_000_000
        writer.close()


async def test_a_reader_that_leaves_its_last_bytes_unread_is_cut_off_too(tmp_path):
    """Its whole answer is written and buffered: only the connection is still open."""
    limits = ConnectionLimits(stall_seconds=0.5, per_address=64)
    async with face(tmp_path, connections=limits, responses=ResponseLimits(64, 64)) as served:
        path = await put_much(served)
        ends = []
        for length in range(1_500_000, 8_000_000, 150_000):  # the kernel buffers some megabytes
            reader, writer = await asyncio.open_connection(HOST, served.port, limit=4096)
            writer.write(request(path, f"Range: bytes=0-{length}", CLOSE))
            await reader.readuntil(b"\r\n\r\n")
            ends.append(writer)
        await asyncio.sleep(1.5)
        assert not served.server.rate_limiter.connections
        for writer in ends:
            writer.close()


async def test_a_slow_head_is_cut_off_and_so_is_silence(tmp_path):
    limits = ConnectionLimits(head_seconds=0.5)
    async with face(tmp_path, connections=limits) as served:

        async def lives(*sent, pause=0.2):
            reader, writer = await asyncio.open_connection(HOST, served.port)
            started = asyncio.get_running_loop().time()
            reading = asyncio.ensure_future(reader.read())
            for data in sent:
                if not reading.done():
                    writer.write(data)
                await asyncio.wait([reading], timeout=pause)
            await asyncio.wait([asyncio.gather(reading, return_exceptions=True)], timeout=5)
            writer.close()
            return asyncio.get_running_loop().time() - started

        drip = [bytes([byte]) for byte in b"GET /data1.bin HTTP/1.1\r\n"]
        second = [request("/gone"), *drip]
        for seconds in await asyncio.gather(lives(), lives(*drip), lives(*second)):
            assert 0.4 < seconds < 2.0


async def test_connections_and_responses_are_limited(tmp_path):
    connections = ConnectionLimits(per_address=3)
    responses = ResponseLimits(per_address=2)
    async with face(tmp_path, connections=connections, responses=responses) as served:
        path = await put_much(served)
        held = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(HOST, served.port, limit=4096)
            writer.write(request(path))
            await reader.readuntil(b"\r\n\r\n")
            held.append(writer)
        busy = await get(served.port, BLOB)
        assert (busy.status, busy.headers["retry-after"]) == (503, "1")
        third = await asyncio.open_connection(HOST, served.port)
        await asyncio.sleep(0.05)
        (refused,) = await exchange(served.port, b"")
        assert refused.status == 503
        for writer in (*held, third[1]):
            writer.close()
        await asyncio.sleep(0.1)
        assert (await get(served.port, path, "Range: bytes=0-9")).status == 206


def test_requests_are_limited_by_address():
    keeper = HttpRateLimiter(ConnectionLimits(requests_per_second=10))
    assert sum(keeper.may_ask("one", 0.0) for _ in range(50)) == 20
    assert keeper.may_ask("two", 0.0)
    assert not keeper.may_ask("one", 0.05) and keeper.may_ask("one", 0.2)
    for number in range(10_000):
        keeper.may_ask(str(number), 1.0)
    assert table_sizes(keeper.tables)["http_addresses"] <= 4096


async def test_a_flood_of_requests_is_turned_away(tmp_path):
    limits = ConnectionLimits(requests_per_second=10)
    async with face(tmp_path, connections=limits) as served:
        flood = request("/gone") * 200 + request("/gone", CLOSE)
        replies = await exchange(served.port, flood)
        assert [reply.status for reply in replies] == [404] * 20 + [429]


async def test_uploads_stay_under_the_cap_that_streams_share(tmp_path):
    cap = UploadScheduler(1_000_000)
    async with face(tmp_path, cap=cap) as served:
        await served.blobs.put(DATA, WEIGHTS)
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(get(served.port, BLOB) for _ in range(2)))
        assert asyncio.get_running_loop().time() - started > 2 * len(DATA) / 1e6 - 0.8


async def test_upload_is_shared_by_trust_of_the_address(tmp_path):
    told = []

    class Noting(UploadScheduler):
        async def take(self, _count, *, trusted):
            told.append(trusted)

    there = set()
    async with face(tmp_path, cap=Noting(None), trusted=there.__contains__) as served:
        await served.blobs.put(DATA, WEIGHTS)
        for is_trusted in (False, True):
            there.update([HOST] if is_trusted else [])
            told.clear()
            assert (await get(served.port, BLOB)).body == DATA
            assert set(told) == {is_trusted}


async def test_a_capped_answer_leaves_in_small_pieces(tmp_path):
    taken = []

    class Noting(UploadScheduler):
        async def take(self, count, *, trusted):
            taken.append(count)
            await super().take(count, trusted=trusted)

    async with face(tmp_path, cap=Noting(5_000_000)) as served:
        await served.blobs.put(DATA, WEIGHTS)
        assert (await get(served.port, BLOB)).body == DATA
    assert sum(taken) == len(DATA)
    assert max(taken) <= 0.005 * 5_000_000


async def test_thousands_of_connections_take_little_memory(tmp_path):
    """The bound: served requests, each with a piece and a buffer; the rest is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(3000, (hard if hard > 0 else 1 << 20) // 3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * count), hard))
    limits = ConnectionLimits(total=256, per_address=256)
    responses = ResponseLimits(per_address=64)
    try:
        async with face(tmp_path, connections=limits, responses=responses) as served:
            path = await put_much(served)
            process = psutil.Process()
            before = process.memory_info().rss
            ends = []
            for _ in range(count):
                end = socket.socket()
                end.setblocking(False)
                await asyncio.get_running_loop().sock_connect(end, (HOST, served.port))
                end.send(request(path))
                ends.append(end)
                await asyncio.sleep(0)
            await asyncio.sleep(1.0)
            grown = process.memory_info().rss - before
            assert served.server.rate_limiter.connections.total() <= 256
            for end in ends:
                end.close()
            # 64 responses grow it by 83 to 108 MB, 256 would by 410, 1 does by 5. The test process
            # may have allocated some of it already, and does other work.
            assert grown < 200e6, f"{grown / 1e6:.0f} MB"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_port_that_is_taken_is_said():
    texts = {"failure": "cannot serve weights", "remedy": "choose another --http-port"}
    with listen(HOST, 0, **texts) as one:
        one.listen()
        with pytest.raises(NodeError, match="--http-port"):
            listen(HOST, one.getsockname()[1], **texts)


# Layout of shardcast 0.3.2


def version_at(path: Path, data: bytes, number: int = 0) -> Policy:
    path.write_bytes(data)
    return Policy(Version(number), Digest(bytes(32)), path)


async def test_versions_are_listed_and_cut_as_shardcast_does(tmp_path):
    async with face(tmp_path) as served:
        assert (await get(served.port, "/distribution.txt")).body == b""
        data = bytes(SHARD_BYTES) + b"the end"
        served.policies[Version(12)] = version_at(tmp_path / "v12", data, 12)
        served.policies[Version(2)] = version_at(tmp_path / "v2", DATA, 2)
        served.policies[Version(3)] = Policy(Version(3), Digest(bytes(32)), tmp_path / "gone")
        listed = await get(served.port, "/distribution.txt")
        assert listed.body.decode() == (
            f"v2: {blake3(DATA).hexdigest()}|1\nv12: {blake3(data).hexdigest()}|2\n"
        )
        first = await get(served.port, "/v12/shard_00001.bin", method="HEAD")
        assert first.headers["content-length"] == str(SHARD_BYTES)
        second = await get(served.port, "/v12/shard_00002.bin")
        assert (second.status, second.body) == (200, b"the end")
        assert second.headers["etag"] == f'"{blake3(data).hexdigest()}-2"'
        part = await get(served.port, "/v2/shard_00001.bin", "Range: bytes=-10")
        assert (part.status, part.body) == (206, DATA[-10:])
        assert len((await get(served.port, "/data1.bin")).body) == PROBE_BYTES
        del served.policies[Version(2)]
        assert (await get(served.port, "/v2/shard_00001.bin")).status == 404


async def test_a_version_is_hashed_once_and_again_when_its_file_is_another(tmp_path, monkeypatch):
    hashed = []
    slice_of = files.slice_of

    def read(path, *which):
        hashed.append(path)
        return slice_of(path, *which)

    monkeypatch.setattr(files, "slice_of", read)
    async with face(tmp_path) as served:
        path = tmp_path / "v0"
        served.policies[Version(0)] = version_at(path, b"one")
        lists = await asyncio.gather(*(get(served.port, "/distribution.txt") for _ in range(5)))
        assert {reply.body for reply in lists} == {f"v0: {blake3(b'one').hexdigest()}|1\n".encode()}
        assert hashed == [path]
        (tmp_path / "new").write_bytes(b"two")
        (tmp_path / "new").replace(path)
        again = await get(served.port, "/distribution.txt")
        assert again.body == f"v0: {blake3(b'two').hexdigest()}|1\n".encode()
