import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from node.network.blobs.config import TURNS_MIN, UNTRUSTED_MIN, WORTH_BYTES, ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.network.blobs.wire import HELD_BYTES_MAX, BlobKind, BlobRefusedError, BlobStatus
from node.network.resources.upload_scheduler import BURST_SECONDS, PAYLOAD_SHARE, UploadScheduler
from node.network.streams.protocols import BLOBS
from node.storage.blobs import FileBlobs
from protocol.core import codec, crypto
from protocol.core.types import PeerId, RunId
from roles.ports.storage import Owner, Purpose
from roles.ports.transport import Stream, TransportError, Trust
from simulations.network import streams
from tests.node.storage.blob_stores import name_of, one_shard, open_one
from tests.worlds.network import Hub

pytestmark = pytest.mark.virtual

DATA = bytes(range(256)) * 1200
DIGEST = crypto.digest(DATA)
OWNER = Owner(Purpose.ROLLOUT_BODY, crypto.digest(b"a commit"))
PROTOCOL = BLOBS.on(RunId(b"run"))
LIMITS = ExchangeLimits(open_seconds=0.5, stall_seconds=0.5)


class Node:
    def __init__(
        self, hub: Hub, name: str, directory: Path, limits: ExchangeLimits = LIMITS
    ) -> None:
        self.peer = PeerId(name)
        self.faults: list[tuple[PeerId, str]] = []
        self.worth: list[PeerId] = []
        self.transport = hub.transport(self.peer)
        self.blobs = FileBlobs(directory / name)
        self.exchange = BlobExchange(
            self.transport,
            self.blobs,
            protocol=PROTOCOL,
            limits=limits,
            trust=Trust(member=lambda _peer: True),
            on_fault=lambda peer, fault: self.faults.append((peer, fault.code)),
            on_worth=lambda peer, _now: self.worth.append(peer),
        )


async def join(hub: Hub, *nodes: Node) -> None:
    for node in nodes:
        await node.exchange.start()
        for other in nodes:
            if other is not node:
                hub.connect(node.peer, other.peer)


async def network(
    directory: Path, *names: str, limits: ExchangeLimits = LIMITS
) -> tuple[Hub, list[Node]]:
    hub = Hub()
    nodes = [Node(hub, name, directory, limits) for name in names]
    await join(hub, *nodes)
    return hub, nodes


async def pull(node: Node, peer: PeerId, offset: int, length: int, **options: Any) -> list[bytes]:
    pieces = node.exchange.fetch_range(
        peer, DIGEST, offset, length, **{"piece_bytes": 100_000, **options}
    )
    async with aclosing(pieces):
        return [piece async for piece in pieces]


def header(status: str, total_bytes: object, **more: object) -> bytes:
    data = codec.encode({"status": status, "total_bytes": total_bytes, **more})
    return len(data).to_bytes(2, "big") + data


def impostor(
    answer: bytes, *, then_hang: bool = False
) -> Callable[[Stream], Coroutine[Any, Any, None]]:
    async def handler(stream: Stream) -> None:
        size = int.from_bytes(await stream.read_exactly(2), "big")
        await stream.read_exactly(size)
        await stream.write(answer)
        if then_hang:
            await asyncio.sleep(3600)

    return handler


async def test_a_blob_comes_from_the_first_source_that_has_it(tmp_path: Path) -> None:
    _, (one, two, three) = await network(tmp_path, "one", "two", "three")
    await three.blobs.put(DATA, OWNER)
    sources = [one.peer, PeerId("absent"), two.peer, three.peer]
    assert await one.exchange.fetch(DIGEST, len(DATA), sources, 5) == DATA
    assert (one.exchange.received.total(), three.exchange.sent.total()) == (len(DATA), len(DATA))
    assert three.exchange.sent[BlobKind.WEIGHTS] == 0
    await one.blobs.put(DATA, OWNER)
    assert await one.exchange.fetch(DIGEST, len(DATA), [], 5) == DATA
    assert await two.exchange.fetch(DIGEST, len(DATA) - 1, [three.peer], 5) is None
    assert await two.exchange.fetch(crypto.digest(b"?"), 10, [three.peer], 5) is None


async def test_a_range_comes_in_pieces_and_is_accounted(tmp_path: Path) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    await two.blobs.put(DATA, OWNER)
    pieces = await pull(one, two.peer, 1000, 250_000, kind=BlobKind.WEIGHTS)
    assert [len(piece) for piece in pieces] == [100_000, 100_000, 50_000]
    assert b"".join(pieces) == DATA[1000:251_000]
    assert one.exchange.received[BlobKind.WEIGHTS] == one.exchange.received.total() == 250_000
    assert two.exchange.sent[BlobKind.WEIGHTS] == 250_000
    with pytest.raises(TransportError, match="less than"):
        await pull(one, two.peer, 1000, len(DATA))
    for offset in (len(DATA), len(DATA) + 1):
        with pytest.raises(TransportError):
            await pull(one, two.peer, offset, 1)


async def test_a_blob_that_is_arriving_is_served_chunk_by_chunk(tmp_path: Path) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    partial = await open_one(two.blobs, one_shard(DATA, 100_000))
    pieces = one.exchange.fetch_range(two.peer, DIGEST, 0, len(DATA), piece_bytes=100_000)
    async with aclosing(pieces):
        for index in partial.missing():
            part = DATA[index * 100_000 : (index + 1) * 100_000]
            waiting = asyncio.ensure_future(anext(pieces))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await partial.write_chunk(index, part)
            assert await waiting == part


async def test_who_must_not_wait_is_refused_a_blob_that_is_arriving(tmp_path: Path) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    index = one_shard(DATA, 100_000)
    await open_one(two.blobs, index)
    with pytest.raises(BlobRefusedError) as refusal:
        await pull(one, two.peer, 0, 100, wait=False)
    assert refusal.value.status is BlobStatus.UNKNOWN
    with pytest.raises(TransportError):
        await pull(one, two.peer, 0, 100)
    reading = asyncio.create_task(pull(one, two.peer, 0, 100))
    await asyncio.sleep(0.05)
    await two.blobs.release(Owner(Purpose.WEIGHTS, name_of(index)))
    with pytest.raises(TransportError):
        await reading


async def test_who_must_not_wait_gets_the_chunks_that_are_here_and_learns_which(
    tmp_path: Path,
) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    size = 30_000
    partial = await open_one(two.blobs, one_shard(DATA, size))
    for index in (0, 1, 9):
        await partial.write_chunk(index, DATA[index * size : (index + 1) * size])
    assert b"".join(await pull(one, two.peer, 20_000, 40_000, wait=False)) == DATA[20_000:60_000]
    for offset in (30_000, 90_000, 210_001):
        with pytest.raises(BlobRefusedError) as refusal:
            await pull(one, two.peer, offset, 60_000, wait=False)
        assert refusal.value.status is BlobStatus.UNKNOWN
        assert refusal.value.held == 0b10_0000_0011


async def test_what_is_told_of_the_chunks_that_are_here_is_bounded(tmp_path: Path) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    index = one_shard(DATA, 100)
    partial = await open_one(two.blobs, index)
    for index in (0, 8 * HELD_BYTES_MAX - 1, 8 * HELD_BYTES_MAX):
        await partial.write_chunk(index, DATA[index * 100 : (index + 1) * 100])
    with pytest.raises(BlobRefusedError) as refusal:
        await pull(one, two.peer, 0, 200, wait=False)
    assert refusal.value.held == 1 | 1 << 8 * HELD_BYTES_MAX - 1


async def test_a_fetch_goes_on_where_the_last_source_broke(tmp_path: Path) -> None:
    hub, (one, two, three) = await network(tmp_path, "one", "two", "three")
    await three.blobs.put(DATA, OWNER)
    half = impostor(header("ok", len(DATA)) + DATA[:50_000])
    await two.transport.handle(PROTOCOL, half)
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer, three.peer], 5) == DATA
    assert three.exchange.sent.total() == len(DATA) - 50_000
    assert one.faults == []
    hub.remove(three.peer)
    assert await one.exchange.fetch(DIGEST, len(DATA), [three.peer], 5) is None


async def test_who_sends_a_bad_blob_alone_is_named(tmp_path: Path) -> None:
    _, (one, two, three) = await network(tmp_path, "one", "two", "three")
    await three.blobs.put(DATA, OWNER)
    bad = b"x" + DATA[1:]
    await two.transport.handle(PROTOCOL, impostor(header("ok", len(DATA)) + bad))
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer, three.peer], 5) == DATA
    assert one.faults == [(two.peer, "bad-blob")]


async def test_of_several_senders_of_a_bad_blob_only_the_liar_is_named(tmp_path: Path) -> None:
    _, (one, two, three) = await network(tmp_path, "one", "two", "three")
    await three.blobs.put(DATA, OWNER)
    calls: list[bool] = []

    async def lie(stream: Stream) -> None:
        bad = b"x" + DATA[1:]
        calls.append(True)
        part = bad[:50_000] if len(calls) == 1 else bad
        await impostor(header("ok", len(DATA)) + part)(stream)

    await two.transport.handle(PROTOCOL, lie)
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer, three.peer], 5) == DATA
    assert len(calls) <= 2
    assert (three.peer, "bad-blob") not in one.faults


async def test_sources_that_disagree_on_the_length_cannot_spoil_a_fetch(tmp_path: Path) -> None:
    _, (one, two, three) = await network(tmp_path, "one", "two", "three")
    await three.blobs.put(DATA, OWNER)
    longer = impostor(header("ok", len(DATA) + 1) + DATA[:1000])
    await two.transport.handle(PROTOCOL, longer)
    assert await one.exchange.fetch(DIGEST, 10**6, [two.peer, three.peer], 5) == DATA


@pytest.mark.parametrize(
    "answer",
    [
        header("fine", 5),
        header("ok", -1),
        header("ok", "many"),
        header("ok", 0),
        header("ok", 1 << 60),
        header("unknown", 0, held=bytes(HELD_BYTES_MAX + 1)),
        header("unknown", 0, held=1),
        header("unknown", 0, more=b""),
        b"\xff\xff" + bytes(300),
        b"\x00\x03abc",
        b"\x00",
        b"",
        header("busy", 0),
    ],
)
async def test_nonsense_in_the_header_is_a_broken_stream(tmp_path: Path, answer: bytes) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    await two.transport.handle(PROTOCOL, impostor(answer))
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer], 5) is None
    with pytest.raises(TransportError):
        await pull(one, two.peer, 0, 10)


async def test_a_silent_source_costs_only_its_share_of_the_deadline(tmp_path: Path) -> None:
    hub, (one, two, three) = await network(tmp_path, "one", "two", "three")
    await three.blobs.put(DATA, OWNER)
    await two.transport.handle(PROTOCOL, impostor(b"", then_hang=True))
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer, three.peer], 0.6) == DATA
    hub.stall(one.peer)
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer, three.peer], 0.2) is None
    drip = impostor(header("ok", len(DATA)) + b"x", then_hang=True)
    await two.transport.handle(PROTOCOL, drip)
    hub.resume(one.peer)
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer], 0.2) is None


async def test_a_source_that_trickles_costs_only_its_share_of_the_deadline(tmp_path: Path) -> None:
    async def trickle(stream: Stream) -> None:
        size = int.from_bytes(await stream.read_exactly(2), "big")
        await stream.read_exactly(size)
        await stream.write(header("ok", len(DATA)))
        for at in range(len(DATA)):
            await stream.write(DATA[at : at + 1])
            await asyncio.sleep(0.05)

    _, (one, two, three) = await network(tmp_path, "one", "two", "three")
    await three.blobs.put(DATA, OWNER)
    await two.transport.handle(PROTOCOL, trickle)
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer, three.peer], 0.8) == DATA
    assert len(DATA) - 16 <= three.exchange.sent.total() < len(DATA)  # keeps the bytes of two


@pytest.mark.parametrize(
    "change",
    [
        {"digest": b"short"},
        {"digest": "text"},
        {"offset": -1},
        {"offset": True},
        {"length": 0},
        {"length": 1 << 50},
        {"wait": 1},
        {"kind": "gift"},
        {"more": 1},
    ],
)
async def test_a_malformed_request_is_a_fault_of_its_sender(
    tmp_path: Path, change: dict[str, object]
) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    good = {"digest": DIGEST, "offset": 0, "length": 1, "wait": True, "kind": "body"}
    stream = await one.transport.open_stream(two.peer, PROTOCOL)
    data = codec.encode(good | change)
    await stream.write(len(data).to_bytes(2, "big") + data)
    assert await stream.read(100) == b""
    assert [peer for peer, _ in two.faults] == [one.peer]


async def test_an_oversize_request_is_a_fault_and_a_silent_one_is_dropped(tmp_path: Path) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    stream = await one.transport.open_stream(two.peer, PROTOCOL)
    await stream.write(b"\xff\xff")
    assert await stream.read(1) == b""
    assert two.faults == [(one.peer, "oversize")]
    silent = await one.transport.open_stream(two.peer, PROTOCOL)
    assert await silent.read(1) == b""
    assert len(two.exchange._server._bounded._serving) == 0


async def test_a_reader_that_stalls_is_dropped_and_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", len(DATA) // 4)
    limits = ExchangeLimits(stall_seconds=0.3, streams_per_peer=2)
    _, (one, two, three) = await network(tmp_path, "one", "two", "three", limits=limits)
    await two.blobs.put(DATA, OWNER)
    stalled = [
        one.exchange.fetch_range(two.peer, DIGEST, 0, len(DATA), piece_bytes=100) for _ in range(2)
    ]
    for pieces in stalled:
        await anext(pieces)
    assert b"".join(await pull(three, two.peer, 0, len(DATA))) == DATA
    assert len(two.exchange._server._bounded._serving) == 2
    await asyncio.sleep(0.5)
    assert len(two.exchange._server._bounded._serving) == 0
    for pieces in stalled:
        with pytest.raises(TransportError):
            [piece async for piece in pieces]


@pytest.mark.parametrize(
    "limits",
    [ExchangeLimits(streams_per_peer=1), ExchangeLimits(streams_total=1)],
)
async def test_too_many_streams_are_told_busy(
    tmp_path: Path, limits: ExchangeLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", len(DATA) // 4)
    _, (one, two) = await network(tmp_path, "one", "two", limits=limits)
    await two.blobs.put(DATA, OWNER)
    pieces = one.exchange.fetch_range(two.peer, DIGEST, 0, len(DATA), piece_bytes=100)
    async with aclosing(pieces):
        await anext(pieces)
        with pytest.raises(BlobRefusedError) as refusal:
            await pull(one, two.peer, 0, 10)
        assert refusal.value.status is BlobStatus.BUSY
    await asyncio.sleep(0.01)
    assert await pull(one, two.peer, 0, 10) == [DATA[:10]]


async def test_upload_stays_under_its_cap(tmp_path: Path) -> None:
    limits = ExchangeLimits(upload_bytes_per_second=500_000)
    _, (one, two, three) = await network(tmp_path, "one", "two", "three", limits=limits)
    await two.blobs.put(DATA, OWNER)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(pull(node, two.peer, 0, len(DATA)) for node in (one, three)))
    took = asyncio.get_running_loop().time() - began
    expected = 2 * len(DATA) / 500_000
    assert expected - 0.3 < took < expected + 1.0


@pytest.mark.parametrize(
    ("upload", "streams", "turns"),
    [(None, 256, 64), (1 << 30, 256, 64), (50_000_000, 95, 23), (2_000_000, 8, 4)],
)
def test_so_many_untrusted_peers_are_served_as_the_line_brings_to_an_end(
    upload: int | None, streams: int, turns: int
) -> None:
    limits = ExchangeLimits(upload_bytes_per_second=upload)
    assert (limits.untrusted, limits.turns) == (streams, turns)


async def test_a_crowd_on_a_thin_line_is_served_to_the_end(tmp_path: Path) -> None:
    limits = ExchangeLimits(streams_total=2, upload_bytes_per_second=len(DATA))
    _, (one, two, three, four) = await network(
        tmp_path, "one", "two", "three", "four", limits=limits
    )
    await one.blobs.put(DATA, OWNER)
    first = [asyncio.create_task(pull(node, one.peer, 0, len(DATA))) for node in (two, three)]
    await asyncio.sleep(1.3)
    assert not any(task.done() for task in first)
    with pytest.raises(BlobRefusedError) as refusal:
        await pull(four, one.peer, 0, 10)
    assert refusal.value.status is BlobStatus.BUSY
    assert [b"".join(pieces) for pieces in await asyncio.gather(*first)] == [DATA, DATA]


@pytest.mark.parametrize(
    ("untrusted", "streams_each", "served"),
    [(TURNS_MIN + 1, 1, TURNS_MIN), (TURNS_MIN - 1, 3, UNTRUSTED_MIN)],
)
async def test_no_more_untrusted_peers_are_served_than_a_thin_line_carries(
    tmp_path: Path, untrusted: int, streams_each: int, served: int
) -> None:
    limits = ExchangeLimits(upload_bytes_per_second=len(DATA))
    names = [f"p{number}" for number in range(untrusted + 1)]
    _, (one, *others) = await network(tmp_path, *names, limits=limits)
    await one.blobs.put(DATA, OWNER)
    pulls = [
        asyncio.create_task(pull(node, one.peer, 0, len(DATA)))
        for node in others
        for _ in range(streams_each)
    ]
    await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
    assert len(one.exchange._server._bounded._serving) == served
    for task in pulls:
        task.cancel()
    refused = await asyncio.gather(*pulls, return_exceptions=True)
    assert [type(each) for each in refused].count(BlobRefusedError) == 1


async def test_a_stream_is_worth_its_opening_when_a_long_range_was_taken_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", WORTH_BYTES // 4)
    _, (one, other) = await network(tmp_path, "one", "other")
    await one.blobs.put(DATA, OWNER)
    for length in (1, WORTH_BYTES - 1, WORTH_BYTES, len(DATA)):
        await pull(other, one.peer, 0, length)
        await asyncio.sleep(0.1)
    assert one.worth == [other.peer] * 2
    left = other.exchange.fetch_range(one.peer, DIGEST, 0, len(DATA), piece_bytes=100)
    async with aclosing(left):
        await anext(left)
    await pull(other, one.peer, 0, 1)
    assert one.worth == [other.peer] * 2


async def test_a_reader_that_has_stopped_loses_its_place_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", len(DATA) // 4)
    limits = ExchangeLimits(streams_total=1)
    _, (one, two, three) = await network(tmp_path, "one", "two", "three", limits=limits)
    await one.blobs.put(DATA, OWNER)
    stopped = two.exchange.fetch_range(one.peer, DIGEST, 0, len(DATA), piece_bytes=100)
    async with aclosing(stopped):
        await anext(stopped)
        with pytest.raises(BlobRefusedError):
            await pull(three, one.peer, 0, 10)
        await asyncio.sleep(1.1)
        assert await pull(three, one.peer, 0, 10) == [DATA[:10]]


class Noted:
    """Stream that records its close."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def close(self) -> None:
        self.closed = True
        await self._stream.close()


class Noting:
    """Transport that records its streams."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.opened: list[Noted] = []

    async def open_stream(self, peer: PeerId, protocol: str) -> Noted:
        self.opened.append(Noted(await self._transport.open_stream(peer, protocol)))
        return self.opened[-1]


@pytest.mark.parametrize("answer", [header("busy", 0), header("ok", -1), b"\x00\x02hi"])
async def test_every_stream_that_was_opened_is_closed(tmp_path: Path, answer: bytes) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    await two.transport.handle(PROTOCOL, impostor(answer, then_hang=True))
    noting = Noting(one.transport)
    exchange = BlobExchange(noting, one.blobs, protocol=PROTOCOL, limits=LIMITS)
    pieces = exchange.fetch_range(two.peer, DIGEST, 0, 10, piece_bytes=10)
    with pytest.raises(TransportError):
        await anext(pieces)
    assert [stream.closed for stream in noting.opened] == [True]


async def test_a_blob_larger_than_was_promised_is_not_read(tmp_path: Path) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    await two.transport.handle(PROTOCOL, impostor(header("ok", len(DATA)) + DATA))
    assert await one.exchange.fetch(DIGEST, len(DATA) - 1, [two.peer], 5) is None
    assert one.exchange.received.total() == 0
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer], 5) == DATA


async def test_who_asks_and_does_not_read_costs_one_deadline(tmp_path: Path) -> None:
    """Nothing is cut and nothing ends: the stream blocks until its other end reads."""
    _, (one, two) = await network(tmp_path, "one", "two")
    large = bytes(8 * streams.WINDOW_BYTES)
    digest = await two.blobs.put(large, OWNER)
    stream = await one.transport.open_stream(two.peer, PROTOCOL)
    wanted = {"digest": digest, "offset": 0, "length": len(large), "wait": True, "kind": "body"}
    data = codec.encode(wanted)
    await stream.write(len(data).to_bytes(2, "big") + data)
    await asyncio.sleep(LIMITS.stall_seconds / 2)
    assert len(two.exchange._server._bounded._serving) == 1
    await asyncio.sleep(3 * LIMITS.stall_seconds)
    assert len(two.exchange._server._bounded._serving) == 0
    await stream.close()


async def seconds_to_take(cap: UploadScheduler, count: int) -> float:
    began = asyncio.get_running_loop().time()
    await cap.take(count, trusted=False)
    return asyncio.get_running_loop().time() - began


async def test_an_idle_uplink_saves_up_for_a_moment_only() -> None:
    cap = UploadScheduler(10_000)
    rate = round(PAYLOAD_SHARE * 10_000)
    await cap.take(rate, trusted=False)
    await asyncio.sleep(3600)
    allowed = round(rate * BURST_SECONDS)
    assert await seconds_to_take(cap, allowed) == 0
    for _ in range(3):
        assert await seconds_to_take(cap, rate) == pytest.approx(1.0)


async def test_the_headers_of_full_packets_fit_into_the_line_beside_what_the_cap_lets_go() -> None:
    cap = UploadScheduler(1_000_000)
    await cap.take(1_000_000, trusted=False)  # the saved-up budget is gone
    ten_seconds = await seconds_to_take(cap, 10_000_000)
    assert ten_seconds > 10.0 * 1514 / 1448


async def test_the_line_is_shared_by_reputation(tmp_path: Path) -> None:
    _, (one, two) = await network(tmp_path, "one", "two")
    digest = await two.blobs.put(DATA, OWNER)
    told: list[bool] = []

    async def note(_count: int, *, trusted: bool) -> None:
        told.append(trusted)

    two.exchange.upload_cap.take = note  # type: ignore[method-assign]
    nobody, somebody = Trust(), Trust(lambda peer: peer == one.peer)
    for trust in (nobody, somebody):
        two.exchange._server._trust = trust
        told.clear()
        assert await one.exchange.fetch(digest, len(DATA), [two.peer], 60.0) == DATA
        assert set(told) == {trust is somebody}


@pytest.mark.parametrize("rate", [100_000, 5_000_000, None])
async def test_what_else_leaves_gets_in_between_small_pieces(
    tmp_path: Path, rate: int | None
) -> None:
    """A whole one would occupy the line of 5 MB/s for 50 ms."""
    limits = ExchangeLimits(upload_bytes_per_second=rate)
    _, (one, two) = await network(tmp_path, "one", "two", limits=limits)
    await two.blobs.put(DATA, OWNER)
    taken: list[int] = []
    take = two.exchange.upload_cap.take

    async def note(count: int, *, trusted: bool) -> None:
        taken.append(count)
        await take(count, trusted=trusted)

    two.exchange.upload_cap.take = note  # type: ignore[method-assign]
    assert await one.exchange.fetch(DIGEST, len(DATA), [two.peer], 60.0) == DATA
    assert sum(taken) == len(DATA)
    assert max(taken) <= max(4096, 0.005 * rate) if rate else max(taken) > 100_000
