"""Ping and gossip latency between peers during a transfer at full rate.

Three processes, each in its own network namespace (``lines``): one publishes a file through a
shaped uplink; two download it and fill that link. They use real p2pd, gossip routers, blob stores
and HTTP services, wired as in a daemon. Measured during the transfer and before it, on an idle
line:

* *ping*: open a stream to the publisher and receive a byte in response, as for messages between
  nodes (``MESSAGE``); the round-trip time;
* *gossip*: a message of a kilobyte from the publisher to its delivery, one way.

Both are sent on a fixed schedule, independent of responses. Cases are the transports of weights,
and the publisher's ``--upload-limit`` as a share of its line's capacity, 0 for none. Cases
alternate, because the machine may have other load; the result is the median over rounds of their
quantiles. There is no distance between the hosts, so the comparison is with a fast network.

Usage: ``python benchmarks/shardcast/latency.py [--megabytes-per-second N] [--seconds N]
[--repeats N] [--limits SHARE ...] [--ways http streams] [--directory DIR] [--json]``
"""

import argparse
import asyncio
import json
import os
import platform
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from children import Child, heard, itself, say
from lines import Host, alone, make_host
from transport import PROTOCOL, commit, reach, transport, write_random

from node.live.hivemind_p2p import HivemindTransport
from node.local.system import SystemClock
from node.network.blobs.config import ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.network.connections.manager import ConnectionManager
from node.network.gossip.driver import Gossip
from node.network.http.application import Application
from node.network.http.catalog import Catalogue
from node.network.http.client import HttpClient
from node.network.http.server import WeightsServer
from node.network.streams.deadline import within
from node.network.streams.protocols import MESSAGE
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.weights.download import RemoteWeights, WeightsDownload
from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, RunId, ValidationResult
from protocol.shardcast.forest import ForestMember
from roles.ports.storage import Purpose
from roles.ports.transport import Stream, TransportError

WAYS = ("http", "streams")
FAST_BYTES_PER_SECOND = 100_000_000
"""Rate of the lines that are not measured."""

SHARD_BYTES, CHUNK_BYTES = 8 << 20, 1 << 20
STRIPES = FANOUT = 4
TOPIC = "benchmark/latency"
PING = MESSAGE.on(RunId(bytes(32)))
INTERVAL_SECONDS = 0.05
MESSAGE_BYTES = 1000
WARM_SECONDS = 2.0
"""Warm-up of the transfer before the measurement."""

LATE_SECONDS = 5.0
"""A message missing this long after the last was sent is lost; so this is the maximum latency."""

START_SECONDS = 120.0


def main() -> None:
    """Measure and print, or run one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes-per-second", type=float, default=5.0, help="of the line")
    parser.add_argument("--seconds", type=float, default=10.0, help="per case, idle and busy each")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0])
    parser.add_argument(
        "--ways", nargs="+", choices=["http", "streams"], default=["http", "streams"]
    )
    parser.add_argument("--directory", type=Path, help="for all files")
    parser.add_argument("--json", action="store_true", help="on one line")
    parser.add_argument("--process", choices=["node"], help=argparse.SUPPRESS)
    parser.add_argument("--arguments", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        uvloop.run(Node(**options.arguments).run())
        return
    alone()
    with tempfile.TemporaryDirectory(prefix="latency-", dir=options.directory) as directory:
        found = measure(Path(directory), options)
    print(json.dumps(found, indent=None if options.json else 2))


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the latencies of every case."""
    rate = round(options.megabytes_per_second * 1e6)
    source = directory / "source"
    write_random(source, round(rate * (options.seconds + WARM_SECONDS)))
    hosts = [make_host(1, rate), *(make_host(n, FAST_BYTES_PER_SECOND) for n in (2, 3))]
    cases = {(way, share): [] for way in options.ways for share in options.limits}
    for _ in range(options.repeats):
        for (way, share), rounds in cases.items():
            here = Path(tempfile.mkdtemp(dir=directory))
            with ExitStack() as stack:
                one = case(here, source, hosts, way, round(share * rate), options.seconds, stack)
            rounds.append(one)
    return {
        "megabytes_per_second": options.megabytes_per_second,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "commit": commit(),
        "cases": [
            {"way": way, "limit": share, **compared(rounds)}
            for (way, share), rounds in cases.items()
        ],
    }


def compared(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return medians over all rounds, idle and busy, and their ratio."""
    found = {
        name: {key: round(median(one[name][key] for one in rounds), 2) for key in rounds[0][name]}
        for name in ("idle", "busy")
    }
    ratios = {
        f"{key}_ratio": round(found["busy"][key] / found["idle"][key], 2)
        for key in found["idle"]
        if key.endswith("_ms")
    }
    return {**found, **ratios}


def case(
    directory: Path,
    source: Path,
    hosts: list[Host],
    way: str,
    limit: int,
    seconds: float,
    stack: ExitStack,
) -> dict[str, dict[str, float]]:
    """Return latencies, idle and during the transfer, and the publisher's upload rate."""
    children = start(directory, hosts, way, limit, stack)
    publisher, *others = children
    weights = publisher.ask(str(source), START_SECONDS)
    found = {}
    for name in ("idle", "busy"):
        if name == "busy":
            for child in others:
                child.ask(weights, START_SECONDS)
            time.sleep(WARM_SECONDS)
        for child in children:
            child.tell(seconds)
        answers = [child.said(seconds + START_SECONDS) for child in children]
        found[name] = {"sent_bytes_per_second": round(answers[0]["sent_bytes"] / seconds)}
        for kind in ("ping", "gossip"):
            ordered = sorted(one for answer in answers[1:] for one in answer[kind])
            found[name] |= {
                f"{kind}_p{percent}_ms": round(1e3 * ordered[len(ordered) * percent // 100], 2)
                for percent in (50, 99)
            }
    return found


def start(
    directory: Path, hosts: list[Host], way: str, limit: int, stack: ExitStack
) -> list[Child]:
    """Start the processes and wait for their gossip mesh; the first has the limit."""
    children = []
    for number, host in enumerate(hosts, start=1):
        here = directory / host.name
        here.mkdir()
        arguments = {"directory": str(here), "host": host.address, "number": number}
        if number == 1:
            arguments["limit"] = limit
        children.append(Child(host, itself("node", **arguments), here / "log"))
        stack.callback(children[-1].end)
    nodes = [child.said(START_SECONDS) for child in children]
    if way == "streams":
        nodes = [{**node, "port": 0} for node in nodes]
    for child in children:
        child.tell(nodes)
    for child in children:
        child.said(START_SECONDS)
    return children


class Node:
    """One of the processes; the first is the publisher."""

    def __init__(self, directory: str, host: str, number: int, limit: int = 0) -> None:
        self._directory = Path(directory)
        self._host = host
        self._number = number
        self._limits = ExchangeLimits(upload_bytes_per_second=limit or None)
        self._pings: list[float] = []
        self._gossiped: list[float] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        """Execute orders until the input ends."""
        streams = await transport(self._directory, self._number, self._host)
        blobs = FileBlobs(self._directory / "blobs")
        ports: dict[PeerId, int] = {}
        exchange = BlobExchange(
            streams,
            blobs,
            protocol=PROTOCOL,
            limits=self._limits,
            http=HttpClient(streams.host_of),
            http_port=lambda peer: ports.get(peer, 0),
        )
        await exchange.start()
        listener = socket.create_server((self._host, 0))
        application = Application(Catalogue(blobs, dict), exchange.upload_cap, exchange.sent)
        await WeightsServer(listener, application).start()
        await streams.handle(PING, _answer)
        address, port = (await streams.addresses())[0], listener.getsockname()[1]
        say({"address": address, "peer": streams.peer_id, "port": port})
        nodes = await heard()
        ports.update({node["peer"]: node["port"] for node in nodes})
        gossip = await self._join(streams, nodes)
        say(self._number)
        members = [ForestMember(PeerId(node["peer"]), 0, reachable=True) for node in nodes]
        while (order := await heard()) is not None:
            if isinstance(order, str):
                sizes = SHARD_BYTES, CHUNK_BYTES
                stored = await blobs.put_file(Path(order), *sizes, Purpose.WEIGHTS)
                about = [stored.index_bytes, stored.total_bytes]
                say([stored.digest.hex(), *about, streams.peer_id])
            elif isinstance(order, list):
                digest = Digest(bytes.fromhex(order[0]))
                weights = RemoteWeights(digest, digest, *order[1:])
                self._download(exchange, blobs, weights, members)
                say(self._number)
            else:
                say(await self._measure(streams, gossip, exchange, nodes[0]["peer"], order))
        for task in self._tasks:
            task.cancel()
        await streams.close()

    async def _join(self, streams: HivemindTransport, nodes: list[dict[str, Any]]) -> Gossip:
        for other in nodes[: self._number - 1]:
            await reach(streams, other["address"])
        rng = Rng(bytes([self._number]))
        peers = ConnectionManager(streams, SystemClock(), rng, [])
        identity = Identity(bytes([self._number]) * 32)
        gossip = Gossip(peers, identity, SystemClock(), rng)
        await gossip.start()
        self._tasks.append(asyncio.create_task(peers.run()))
        gossip.subscribe(TOPIC, lambda *_: ValidationResult.ACCEPT, self._take)
        async with asyncio.timeout(START_SECONDS):
            while len(gossip.mesh_peers(TOPIC)) < len(nodes) - 1:  # noqa: ASYNC110 - others do it
                await asyncio.sleep(0.05)
        return gossip

    def _download(
        self,
        exchange: BlobExchange,
        blobs: FileBlobs,
        weights: RemoteWeights,
        members: list[ForestMember],
    ) -> None:
        here = self._directory
        files = PolicyDirectory(here / "weights", here / "genesis", here / "task", blobs)
        rules = {"stripes": STRIPES, "fanout": FANOUT}
        download = WeightsDownload(exchange, blobs, files, weights, members, **rules)
        self._tasks.append(asyncio.create_task(download.run(files.weights(1))))

    async def _measure(
        self,
        streams: HivemindTransport,
        gossip: Gossip,
        exchange: BlobExchange,
        publisher: PeerId,
        seconds: float,
    ) -> dict[str, Any]:
        """Send for ``seconds``; return the latencies and the bytes sent meanwhile."""
        self._pings, self._gossiped = [], []
        sent_before = exchange.sent.total()
        loop = asyncio.get_running_loop()
        began = loop.time()
        sending = []
        for number in range(round(seconds / INTERVAL_SECONDS)):
            await asyncio.sleep(began + number * INTERVAL_SECONDS - loop.time())
            if self._number == 1:
                stamp = time.monotonic_ns().to_bytes(8, "big")
                one = gossip.publish(TOPIC, stamp + os.urandom(MESSAGE_BYTES - len(stamp)))
            else:
                one = self._ping(streams, publisher)
            sending.append(asyncio.create_task(one))
        sent_bytes = exchange.sent.total() - sent_before
        await asyncio.gather(*sending)
        await asyncio.sleep(1.0)
        return {"ping": self._pings, "gossip": self._gossiped, "sent_bytes": sent_bytes}

    def _take(self, _author: PeerId, data: bytes) -> None:
        self._gossiped.append((time.monotonic_ns() - int.from_bytes(data[:8], "big")) / 1e9)

    async def _ping(self, streams: HivemindTransport, peer: PeerId) -> None:
        began, answered = time.monotonic(), float("inf")
        with suppress(TransportError):
            answered = await within(LATE_SECONDS, _exchange(streams, peer))
        self._pings.append(min(answered - began, LATE_SECONDS))


async def _exchange(streams: HivemindTransport, peer: PeerId) -> float:
    stream = await streams.open_stream(peer, PING)
    try:
        await stream.write(b"?")
        await stream.read_exactly(1)
        return time.monotonic()
    finally:
        await stream.close()


async def _answer(stream: Stream) -> None:
    await within(LATE_SECONDS, stream.read_exactly(1))
    await within(LATE_SECONDS, stream.write(b"!"))


if __name__ == "__main__":
    main()
