"""Hostile HTTP clients, against a server in a separate process with measured memory.

Each is cut off or receives an error; honest clients are served meanwhile.
"""

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import psutil
import pytest

from node.storage.blobs import FileBlobs
from tests.node.network.http.faces import BLOB, DATA, HOST, WEIGHTS, face, get, request
from tests.node.network.http.serving import DEADLINE_SECONDS, LIMITS
from tests.node.network.http.test_client import Pair
from tests.worlds.mortal import Mortal

RSS_BYTES_MAX = 48 << 20
"""Allowed growth: 64 answers with half a megabyte each, and the allocator's reserve."""

PATIENCE_SECONDS = 180.0
"""Timeout of one honest range, with all other load on two cores; a guess."""


@dataclass
class Server:
    port: int
    large: str
    process: psutil.Process
    rss_bytes: int

    def grown_bytes(self):
        return self.process.memory_info().rss - self.rss_bytes


@asynccontextmanager
async def server(directory):
    async with Mortal("tests.node.network.http.serving") as child:
        await child.begin(directory)
        port, large = (await child.line()).split()
        served = Server(int(port), large, psutil.Process(child.pid), 0)
        for _ in range(3):  # imports and allocations of a first answer are no leak
            assert (await get(served.port, served.large)).status == 200
        served.rss_bytes = served.process.memory_info().rss
        yield served


async def connected(served, address):
    end = socket.socket()
    end.setblocking(False)
    end.bind((address, 0))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(end, (HOST, served.port))
    return end


async def sent(end, *parts, pause=0.0):
    with suppress(OSError):
        for part in parts:
            await asyncio.get_running_loop().sock_sendall(end, part)
            await asyncio.sleep(pause)


async def is_cut_off(end):
    """Read to the end; return once the server has closed."""
    with suppress(ConnectionError):
        while await asyncio.get_running_loop().sock_recv(end, 1 << 20):
            pass


# Hostile uses of a connection; each returns when it has sent everything.


async def silent(_served, _end):
    await asyncio.sleep(0)


async def drips_its_head(_served, end):
    await sent(end, *(bytes([byte]) for byte in request(BLOB)), pause=0.1)


async def never_ends_its_head(_served, end):
    await sent(end, b"GET / HTTP/1.1\r\nHost: x\r\n", *[b"X-%d: y\r\n" % n for n in range(5000)])


async def sends_one_endless_header(_served, end):
    await sent(end, b"GET / HTTP/1.1\r\nX: ", *[b"y" * 100_000] * 50)


async def reads_nothing(served, end):
    await sent(end, request(served.large))


async def asks_a_thousand_times_and_reads_nothing(served, end):
    await sent(end, *[request(served.large) * 100] * 10)


async def closes_half_of_it(served, end):
    await sent(end, request(served.large)[:-2])
    with suppress(OSError):
        end.shutdown(socket.SHUT_WR)


async def sends_a_body_without_end(_served, end):
    await sent(end, request(BLOB, "Transfer-Encoding: chunked"), *[b"8\r\nnonsense\r\n"] * 2000)


HARM = (
    silent,
    drips_its_head,
    never_ends_its_head,
    sends_one_endless_header,
    reads_nothing,
    asks_a_thousand_times_and_reads_nothing,
    closes_half_of_it,
    sends_a_body_without_end,
)


async def honest_ranges(served, stop):
    """Request ranges until ``stop``; return the seconds of the slowest."""
    now, slowest = asyncio.get_running_loop().time, 0.0
    while not stop.is_set():
        asked_at = now()
        reply = await get(served.port, BLOB, "Range: bytes=1000-200999")
        assert (reply.status, reply.body) == (206, DATA[1000:201_000])
        slowest = max(slowest, now() - asked_at)
        await asyncio.sleep(0.02)
    return slowest


async def test_whatever_one_host_does_is_cut_off_and_others_are_served(tmp_path):
    async with asyncio.timeout(300), server(tmp_path) as served:
        stop, grown = asyncio.Event(), []
        honest = asyncio.create_task(honest_ranges(served, stop))

        async def harms(act):
            end = await connected(served, "127.0.0.2")
            try:
                await act(served, end)
                grown.append(served.grown_bytes())
                await asyncio.wait_for(is_cut_off_unread(act, end), PATIENCE_SECONDS)
            finally:
                end.close()

        try:
            await asyncio.gather(*(harms(act) for act in HARM for _ in range(12)))
        finally:
            stop.set()
        assert await honest < PATIENCE_SECONDS
        assert max(grown) < RSS_BYTES_MAX, f"{max(grown) >> 20} MiB"


async def is_cut_off_unread(act, end):
    """Return once the server has closed; a client that reads nothing checks after the deadline."""
    if act in (reads_nothing, asks_a_thousand_times_and_reads_nothing):
        await asyncio.sleep(3 * DEADLINE_SECONDS)
    await is_cut_off(end)


async def crowd(served, ends, count):
    """Open idle connections from a hundred hosts."""
    for number in range(count):
        end = await asyncio.wait_for(connected(served, f"127.0.0.{2 + number % 100}"), 60)
        ends.append(end)
        await asyncio.sleep(0)


async def test_thousands_of_connections_from_many_hosts_are_cut_and_peers_go_on(tmp_path):
    """That many hosts fill every HTTP slot; a peer refused there is served over a stream."""
    (tmp_path / "served").mkdir()
    blobs, ends, pulls = FileBlobs(tmp_path / "blobs"), [], 0
    await blobs.put(DATA, WEIGHTS)
    async with asyncio.timeout(300), server(tmp_path / "served") as served:
        both = Pair(tmp_path, blobs, served.port)
        await both.two.start()
        crowding = asyncio.create_task(crowd(served, ends, 2000))
        try:
            while not crowding.done() or not pulls:
                assert await asyncio.wait_for(both.pull(), PATIENCE_SECONDS) == DATA
                pulls += 1
                open_now = [one for one in served.process.net_connections() if one.raddr]
                assert len(open_now) < LIMITS.total + 150, "the others are turned away"
                await asyncio.sleep(0.1)  # polling is work, too
            await crowding
            assert served.grown_bytes() < RSS_BYTES_MAX
            await asyncio.gather(*map(is_cut_off, ends))
            assert (await get(served.port, BLOB)).body == DATA
        finally:
            crowding.cancel()
            both.http.close()
            await both.stop()
            for end in ends:
                end.close()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("lines", "status", "length"),
    [
        (["Range: bytes=" + ",".join(["0-"] * 2000)], 200, len(DATA)),  # 2,000 overlapping ones
        (["Range: bytes=0-9,20-29"], 200, len(DATA)),
        (["Range: bytes=0-9", "Range: bytes=20-29"], 200, len(DATA)),
        (["Range: bytes=0-" + "9" * 19], 206, len(DATA)),
        (["Range: bytes=0-" + "9" * 2000], 200, len(DATA)),
        (["Range: bytes=" + "9" * 19 + "-"], 416, 0),
        (["Range: bytes=-0"], 416, 0),
        (["Range: bytes=-" + "9" * 19], 206, len(DATA)),
        (["Range: bytes=-5--1"], 200, len(DATA)),
        (["Range: bytes=9-3"], 200, len(DATA)),
        (["X: y"] * 900, 200, len(DATA)),
        (["X: y"] * 2000, 400, None),
    ],
)
async def test_no_range_and_no_header_brings_more_than_the_blob(tmp_path, lines, status, length):
    async with face(tmp_path) as served:
        await served.blobs.put(DATA, WEIGHTS)
        reply = await get(served.port, BLOB, *lines)
        assert reply.status == status
        assert length is None or len(reply.body) == length
