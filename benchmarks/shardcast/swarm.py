"""One file from one process to all others, each behind its own line: ours, and SHARDCAST's.

Every process has a network namespace with an uplink shaped to the same rate (``lines``). So upload
bandwidth is scarce, as between homes, and not this machine's cores. In the same run:

* ``ours``: blob stores, downloads, p2pd and HTTP services, wired as in a daemon. All are connected
  and know the members and the version; transports are chosen as in a node.
* ``shardcast``: version 0.3.2 with an origin, two middle nodes, and clients in the other processes,
  in the environment of ``make shardcast``. Middle nodes poll for a new version every second, not
  every 30. Clients start when both list it: a client that sees a version at only one of them
  requests ten shards, however many exist, and never ends.

A *ratio* is the time from publication until the last process has the whole verified file, over size
/ rate. For shardcast a lower bound is known: two middle nodes send to all clients.

Usage: ``python benchmarks/shardcast/swarm.py [--processes N] [--megabytes N]
[--megabytes-per-second N] [--only ours|shardcast] [--directory DIR] [--json]``
"""

import argparse
import filecmp
import json
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from children import Child, heard, itself, say
from lines import Host, alone, make_host
from transport import (
    PROTOCOL,
    SHARDCAST,
    commit,
    reach,
    transport,
    write_random,
)

from node.network.blobs.exchange import BlobExchange
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from node.network.http.application import Application
from node.network.http.catalog import Catalogue
from node.network.http.client import HttpClient
from node.network.http.server import WeightsServer
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.weights.download import RemoteWeights, WeightsDownload
from protocol.core.types import Digest, PeerId
from protocol.shardcast.forest import ForestMember
from roles.ports.storage import Purpose

SHARD_BYTES, CHUNK_BYTES = 4 << 20, 1 << 18
"""64 shards and a thousand chunks for a file of 256 MB, the minimum of large files."""

STRIPES = FANOUT = 4

START_SECONDS = 240.0
"""Each process imports for seconds, and all share the cores."""

MIDDLES = 2
DEADLINE_RATIO = 60
"""Multiple of the bound, plus two minutes, after which a run has failed."""


def main() -> None:
    """Measure and print, or run one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--megabytes-per-second", type=float, default=8.0, help="of each upload")
    parser.add_argument("--only", choices=["ours", "shardcast"], help="leave the other out")
    parser.add_argument("--directory", type=Path, help="for all files, as many as processes twice")
    parser.add_argument("--json", action="store_true", help="on one line")
    parser.add_argument("--process", choices=["node"], help=argparse.SUPPRESS)
    parser.add_argument("--arguments", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        uvloop.run(be_node(**options.arguments))
        return
    alone()
    with tempfile.TemporaryDirectory(prefix="swarm-", dir=options.directory) as directory:
        found = measure(Path(directory), options)
    print(json.dumps(found, indent=None if options.json else 2))


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of both."""
    rate = round(options.megabytes_per_second * 1e6)
    source = directory / "source"
    write_random(source, options.megabytes * 1_000_000)
    hosts = [make_host(number, rate) for number in range(1, options.processes + 1)]
    found: dict[str, Any] = {
        "processes": options.processes,
        "megabytes": options.megabytes,
        "megabytes_per_second": options.megabytes_per_second,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "commit": commit(),
    }
    bound_seconds = source.stat().st_size / rate
    ways = {"ours": ours, "shardcast": shardcast}
    if not (SHARDCAST.exists() and shutil.which("wget")):
        del ways["shardcast"]
    for name, way in ways.items():
        if options.only in (None, name):
            here = directory / name
            here.mkdir()
            with ExitStack() as stack:
                seconds, more = way(here, source, hosts, bound_seconds, stack)
            shutil.rmtree(here)
            found[name] = {
                "makespan_ratio": round(seconds[-1] / bound_seconds, 2),
                "median_ratio": round(median(seconds) / bound_seconds, 2),
                "makespan_seconds": round(seconds[-1], 1),
                **more,
            }
    if {"ours", "shardcast"} <= found.keys():
        one, other = (found[name]["makespan_seconds"] for name in ("ours", "shardcast"))
        found["shardcast_over_ours"] = round(other / one, 2)
    return found


def arrivals(children: list[Child], source: Path, deadline_seconds: float) -> list[float]:
    """Return the sorted arrival times in seconds, from each child's path and time."""
    ends_at = time.monotonic() + deadline_seconds
    seconds = []
    for child in children:
        answer = child.said(max(1.0, ends_at - time.monotonic()))
        assert filecmp.cmp(source, answer["path"], shallow=False), "it brought something else"
        seconds.append(answer["at"])
    return sorted(seconds)


# Ours


def ours(
    directory: Path, source: Path, hosts: list[Host], bound_seconds: float, stack: ExitStack
) -> tuple[list[float], dict[str, Any]]:
    """Return the seconds of every arrival, and further results."""
    children, rate = [], round(source.stat().st_size / bound_seconds)
    for number, host in enumerate(hosts, start=1):
        here = directory / host.name
        here.mkdir()
        arguments = {"directory": str(here), "host": host.address, "number": number, "rate": rate}
        children.append(Child(host, itself("node", **arguments), here / "log"))
        stack.callback(children[-1].end)
    nodes = [child.said(START_SECONDS) for child in children]
    for child in children:
        child.tell(nodes)
    for child in children:
        child.said(START_SECONDS)
    origin, *others = children
    weights = origin.ask(str(source), START_SECONDS)
    began = time.monotonic()
    for child in others:
        child.tell(weights)
    deadline_seconds = DEADLINE_RATIO * bound_seconds + 120
    seconds = [at - began for at in arrivals(others, source, deadline_seconds)]
    accounts = [child.ask("account", START_SECONDS) for child in children]
    sent = [account["sent_bytes"] / source.stat().st_size for account in accounts]
    http_bytes = sum(account["http_bytes"] for account in accounts)
    return seconds, {
        "origin_sent_ratio": round(sent[0], 2),
        "sent_ratio_max": round(max(sent[1:]), 2),
        "http_share": round(http_bytes / sum(one["sent_bytes"] for one in accounts), 2),
        "cpu_seconds": round(sum(account["cpu_seconds"] for account in accounts), 1),
    }


async def be_node(directory: str, host: str, number: int, rate: int) -> None:
    """Run the origin or another node, as ordered, until the input ends."""
    here = Path(directory)
    streams = await transport(here, number, host)
    blobs = FileBlobs(here / "blobs")
    ports: dict[PeerId, int] = {}
    exchange = BlobExchange(
        streams,
        blobs,
        protocol=PROTOCOL,
        http=HttpClient(streams.host_of),
        http_port=lambda peer: ports.get(peer, 0),
    )
    await exchange.start()
    listener = socket.create_server((host, 0))
    catalogue = Catalogue(blobs, dict)
    server = WeightsServer(listener, Application(catalogue, exchange.upload_cap, exchange.sent))
    await server.start()
    address, port = (await streams.addresses())[0], listener.getsockname()[1]
    say({"address": address, "peer": streams.peer_id, "port": port})
    nodes = await heard()
    for other in nodes[: number - 1]:
        await reach(streams, other["address"])
    ports.update({node["peer"]: node["port"] for node in nodes})
    say(number)
    members = [ForestMember(PeerId(node["peer"]), rate, reachable=True) for node in nodes]
    while (order := await heard()) is not None:
        if order == "account":
            used = os.times()
            cpu_seconds = used.user + used.system
            http_bytes = exchange.sent.by(BlobKind.WEIGHTS, BlobTransport.HTTP)
            sent = {"sent_bytes": exchange.sent.total(), "http_bytes": http_bytes}
            say({**sent, "cpu_seconds": cpu_seconds})
        elif isinstance(order, str):
            stored = await blobs.put_file(Path(order), SHARD_BYTES, CHUNK_BYTES, Purpose.WEIGHTS)
            sizes = [stored.index_bytes, stored.total_bytes]
            say([stored.digest.hex(), *sizes, streams.peer_id])
        else:
            await streams.peers()
            digest, *about = order
            index = Digest(bytes.fromhex(digest))
            path = await download(
                here, exchange, blobs, RemoteWeights(index, index, *about), members
            )
            say({"path": str(path), "at": time.monotonic()})
    await streams.close()


async def download(
    directory: Path,
    exchange: BlobExchange,
    blobs: FileBlobs,
    weights: RemoteWeights,
    members: list[ForestMember],
) -> Path:
    """Download as a daemon does; return the file's path."""
    files = PolicyDirectory(directory / "weights", directory / "genesis", directory / "task", blobs)
    one = WeightsDownload(
        exchange,
        blobs,
        files,
        weights,
        members,
        stripes=STRIPES,
        fanout=FANOUT,
    )
    path = await one.run(files.weights(1))
    assert isinstance(path, Path), path
    return path


# SHARDCAST: each process gets its own /tmp and its own copy of the package, which writes there

ISOLATED = 'mount --bind "$1" /tmp && cd /tmp && shift && exec env PYTHONPATH=/tmp/package "$@"'

COMMON = """
import json, sys, time
number, hosts = int(sys.argv[1]), sys.argv[2:]
def urls(*chosen):
    return [f"http://{host}:8000" for host in chosen]
def say(value):
    print(json.dumps(value), flush=True)
"""
ORIGIN = """
from shardcast.origin_server import OriginServer
origin = OriginServer("/tmp/served")
say("ready")
sys.stdin.readline()
origin.broadcast("/tmp/source")
say(time.monotonic())
sys.stdin.read()
"""
MIDDLE = """
from shardcast.middle_node import MiddleNode
MiddleNode(urls(hosts[0]), "/tmp/served", check_interval=1)
say("ready")
sys.stdin.read()
"""
CLIENT = """
from shardcast.client_node import ClientNode
node = ClientNode(urls(*hosts[1:3]), "/tmp/downloads")
say("ready")
sys.stdin.readline()
while (path := node.download_version("v1")) is None:
    time.sleep(1)
say({"path": path, "at": time.monotonic()})
sys.stdin.read()
"""


def shardcast(
    directory: Path, source: Path, hosts: list[Host], bound_seconds: float, stack: ExitStack
) -> tuple[list[float], dict[str, Any]]:
    """Return the seconds of every client's arrival, and further results."""
    package = subprocess.run(
        [str(SHARDCAST), "-c", "import shardcast; print(*shardcast.__path__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    children = []
    for number, host in enumerate(hosts):
        here = directory / host.name
        (here / "served").mkdir(parents=True)
        (here / "served" / "data1.bin").write_bytes(bytes(1_000_000))
        shutil.copytree(package, here / "package" / "shardcast")
        script = ORIGIN if number == 0 else MIDDLE if number <= MIDDLES else CLIENT
        if number == 0:
            shutil.copy(source, here / "source")
        python = [str(SHARDCAST), "-c", COMMON + script, str(number)]
        addresses = [other.address for other in hosts]
        isolated = ["unshare", "--mount", "sh", "-c", ISOLATED, "sh", str(here)]
        child = Child(host, [*isolated, *python, *addresses], directory / f"{host.name}.log")
        stack.callback(child.end)
        children.append(child)
        if number <= MIDDLES:  # clients need them ready
            child.said(START_SECONDS)
    clients = children[1 + MIDDLES :]
    for child in clients:
        child.said(START_SECONDS)
    began = children[0].ask("publish", START_SECONDS)
    lists = [directory / host.name / "served/distribution.txt" for host in hosts[1 : 1 + MIDDLES]]
    while not all(one.exists() and one.read_bytes() for one in lists):
        assert time.monotonic() < began + START_SECONDS, "a middle does not find the version"
        time.sleep(0.05)
    for child in clients:
        child.tell("download")
    ends_at = time.monotonic() + DEADLINE_RATIO * bound_seconds + 120
    seconds = []
    for child, host in zip(clients, hosts[1 + MIDDLES :], strict=True):
        answer = child.said(max(1.0, ends_at - time.monotonic()))
        path = directory / host.name / Path(answer["path"]).relative_to("/tmp")
        assert filecmp.cmp(source, path, shallow=False), "it brought something else"
        seconds.append(answer["at"] - began)
    floor = max(MIDDLES, len(clients) / MIDDLES)
    return sorted(seconds), {"floor_ratio": floor}


if __name__ == "__main__":
    main()
