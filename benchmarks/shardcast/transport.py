"""Weights between two nodes on this machine: by HTTP, by streams, and by other software.

One origin and one client, both processes. Every contestant transfers the same file from a warm page
cache to a file on disk:

* ``http`` and ``streams``: the project's download (``WeightsDownload``) over real p2pd; every chunk
  is verified, synced, and served to others from the file being written;
* ``http, not synced``: the same without syncing, as other software does;
* ``shardcast``: its own origin and client, which verifies the whole file at the end and syncs
  nothing; in the environment of ``make shardcast``, needs ``wget``;
* ``shardcast from us``: the same client with the weights server of our origin;
* ``plain``: uvicorn sends a file and ``curl`` writes it, without verification;
* ``plain, synced``: the same until the file would survive a power loss, as ours does.

Contestants alternate, because the machine may have other load; medians count.

Usage: ``python benchmarks/shardcast/transport.py [--megabytes N] [--repeats N] [--json]``
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from node.live.hivemind_p2p import HivemindTransport
from node.live.p2pd import P2pdOptions
from node.network.blobs.exchange import BlobExchange
from node.network.http.application import Application
from node.network.http.catalog import Catalogue
from node.network.http.client import HttpClient
from node.network.http.server import WeightsServer
from node.network.streams.protocols import BLOBS
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.testnet.fleet import free_port
from node.weights.download import RemoteWeights, WeightsDownload
from protocol.core.crypto import Identity
from protocol.core.types import Digest, PeerId, RunId, Version
from protocol.run.toml import load_recipe
from protocol.shardcast.forest import ForestMember
from roles.ports.engines import Policy
from roles.ports.storage import Purpose
from roles.ports.transport import TransportError

ROOT = Path(__file__).parents[2]
SHARDCAST = Path(os.environ.get("SHARDCAST_PYTHON", ROOT / ".venv-shardcast" / "bin" / "python"))
HOST = "127.0.0.1"
PROTOCOL = BLOBS.on(RunId(bytes(32)))
SHARD_BYTES, CHUNK_BYTES = 50_000_000, 1 << 20
START_SECONDS = 60.0

CLIENT = """
import sys, time, logging
logging.disable(logging.CRITICAL)
from shardcast.client_node import ClientNode
node = ClientNode([sys.argv[1]], sys.argv[3])
started = time.perf_counter()
assert node.download_version(sys.argv[2]), "not downloaded"
print(time.perf_counter() - started)
"""
ORIGIN = """
import sys, time
from shardcast.origin_server import OriginServer
OriginServer(sys.argv[1], port=int(sys.argv[2])).broadcast(sys.argv[3])
while True:
    time.sleep(60)
"""


def main() -> None:
    """Measure and print, or run one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--process", choices=PROCESSES, help=argparse.SUPPRESS)
    parser.add_argument("--arguments", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        uvloop.run(PROCESSES[options.process](**options.arguments))
        return
    with tempfile.TemporaryDirectory(prefix="transport-") as directory:
        found = measure(Path(directory), options.megabytes * 1_000_000, options.repeats)
    print(json.dumps(found, indent=None if options.json else 2))


def measure(directory: Path, total_bytes: int, repeats: int) -> dict[str, Any]:
    """Return megabytes per second of every contestant, and their ratios."""
    source = directory / "source"
    write_random(source, total_bytes)
    with ExitStack() as stack:
        contestants = start(directory, source, stack)
        seconds: dict[str, list[float]] = {}
        for number in range(repeats):
            for name, run in contestants.items():
                target = directory / "target"
                target.mkdir()
                for part, taken in run(target).items():
                    seconds.setdefault(f"{name}{part}", []).append(taken)
                got = next(target.rglob("*.safetensors"), None) or next(target.glob("download*"))
                same = subprocess.run(["cmp", "-s", source, got], check=False).returncode == 0
                assert same, f"{name} brought something else in round {number}"
                shutil.rmtree(target)
    rates = {
        name: [round(total_bytes / 1e6 / one, 1) for one in all_] for name, all_ in seconds.items()
    }
    middle = {name: median(values) for name, values in rates.items()}
    return {
        "megabytes": total_bytes // 1_000_000,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "commit": commit(),
        "megabytes_per_second": rates,
        "median": middle,
        "http_over_shardcast": ratio(middle, "http", "shardcast"),
        "plain_over_http": ratio(middle, "plain", "http"),
        "plain_synced_over_http": ratio(middle, "plain, synced", "http"),
        "plain_over_http_not_synced": ratio(middle, "plain", "http, not synced"),
        "http_over_streams": ratio(middle, "http", "streams"),
    }


def start(directory: Path, source: Path, stack: ExitStack) -> dict[str, Any]:
    """Start all origins; return, per contestant, a function that downloads and returns its time."""
    origin = serve("origin", stack, directory=str(directory / "origin"), source=str(source))
    plain = serve("plain", stack, source=str(source))
    contestants = {
        "http": lambda target: download(origin, target),
        "http, not synced": lambda target: download(origin, target, synced=False),
        "streams": lambda target: download(origin, target, http=False),
        "plain": lambda target: curl(plain["port"], target),
    }
    if SHARDCAST.exists() and shutil.which("wget"):
        port = free_port()
        served = directory / "shardcast"
        served.mkdir()
        (served / "data1.bin").write_bytes(bytes(1_000_000))
        command = [str(SHARDCAST), "-c", ORIGIN, str(served), str(port), str(source)]
        process = subprocess.Popen([*command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(process.kill)
        listed = served / "distribution.txt"
        ends_at = time.monotonic() + START_SECONDS
        while not (listed.exists() and listed.read_text().strip()):
            assert time.monotonic() < ends_at, "shardcast's origin does not publish"
            time.sleep(0.1)
        contestants["shardcast"] = lambda target: shardcast(port, "v1", target)
        contestants["shardcast from us"] = lambda target: shardcast(origin["port"], "v1", target)
    return contestants


def write_random(path: Path, total_bytes: int) -> None:
    """Write incompressible bytes."""
    draw = random.Random(1)
    with path.open("wb") as file:
        for start_byte in range(0, total_bytes, 1_000_000):
            file.write(draw.randbytes(min(1_000_000, total_bytes - start_byte)))


def serve(process: str, stack: ExitStack, **arguments: Any) -> dict[str, Any]:
    """Start a serving process of ours; return its description of itself."""
    child = subprocess.Popen(command(process, arguments), stdout=subprocess.PIPE, text=True)
    stack.callback(child.wait)
    stack.callback(child.terminate)
    assert child.stdout is not None
    said: dict[str, Any] = json.loads(child.stdout.readline())
    return said


def command(process: str, arguments: dict[str, Any]) -> list[str]:
    """Return the command line of a process of ours."""
    return [sys.executable, __file__, "--process", process, "--arguments", json.dumps(arguments)]


def download(
    origin: dict[str, Any], target: Path, *, http: bool = True, synced: bool = True
) -> dict[str, float]:
    """Download as a node does, in a separate process."""
    arguments = {"directory": str(target), "origin": origin, "http": http, "synced": synced}
    done = subprocess.run(command("client", arguments), capture_output=True, text=True, check=True)
    return {"": json.loads(done.stdout)["seconds"]}


def curl(port: int, target: Path) -> dict[str, float]:
    """Download with curl."""
    url = f"http://{HOST}:{port}/"
    started = time.perf_counter()
    path = target / "download"
    subprocess.run(["curl", "-sf", "-o", str(path), url], check=True)
    written = time.perf_counter() - started
    subprocess.run(["sync", str(path)], check=True)
    return {"": written, ", synced": time.perf_counter() - started}


def shardcast(port: int, version: str, target: Path) -> dict[str, float]:
    """Download with the published client."""
    arguments = [f"http://{HOST}:{port}", version, str(target)]
    done = subprocess.run(
        [str(SHARDCAST), "-c", CLIENT, *arguments], capture_output=True, text=True, check=True
    )
    return {"": float(done.stdout)}


def ratio(medians: dict[str, float], one: str, other: str) -> float | None:
    """Return the speed of ``one`` over that of ``other``."""
    both = one in medians and other in medians
    return round(medians[one] / medians[other], 2) if both else None


def commit() -> str:
    """Return the measured commit."""
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip()


# The processes


def keep_key(directory: Path, identity: Identity) -> Path:
    """Write a node's key."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "identity.key"
    path.write_bytes(identity.to_protobuf())
    return path


async def transport(directory: Path, seed: int, host: str = HOST) -> HivemindTransport:
    """Return a real transport with its own key."""
    identity = Identity(bytes([seed]) * 32)
    path = keep_key(directory, identity)
    return await HivemindTransport.create(identity, path, P2pdOptions(host))


async def reach(streams: HivemindTransport, address: str) -> None:
    """Connect; retry, because p2pd backs off for some seconds after a failed dial."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                await streams.connect(address)
            except TransportError:
                await asyncio.sleep(1.0)
            else:
                return


async def be_origin(directory: str, source: str) -> None:
    """Publish a file and serve it by streams and HTTP until killed."""
    here = Path(directory)
    streams = await transport(here, 1)
    blobs = FileBlobs(here / "blobs")
    stored = await blobs.put_file(Path(source), SHARD_BYTES, CHUNK_BYTES, Purpose.WEIGHTS)
    exchange = BlobExchange(streams, blobs, protocol=PROTOCOL)
    await exchange.start()
    policy = Policy(Version(1), stored.digest, Path(source))
    catalogue = Catalogue(blobs, lambda: {policy.version: policy})
    listener = socket.create_server((HOST, 0))
    server = WeightsServer(listener, Application(catalogue, exchange.upload_cap, exchange.sent))
    await server.start()
    said = {
        "address": (await streams.addresses())[0],
        "peer": streams.peer_id,
        "port": listener.getsockname()[1],
        "index": stored.digest.hex(),
        "index_bytes": stored.index_bytes,
        "total_bytes": stored.total_bytes,
    }
    print(json.dumps(said), flush=True)
    await asyncio.Event().wait()


async def be_client(directory: str, origin: dict[str, Any], *, http: bool, synced: bool) -> None:
    """Download, print the duration, and exit."""
    if not synced:
        os.fsync = lambda _descriptor: None
    here = Path(directory)
    streams = await transport(here, 2)
    peer = await streams.connect(origin["address"])
    await streams.peers()
    blobs = FileBlobs(here / "blobs")
    files = PolicyDirectory(here / "weights", here / "genesis", here / "task", blobs)
    exchange = BlobExchange(
        streams,
        blobs,
        protocol=PROTOCOL,
        http=HttpClient(streams.host_of) if http else None,
        http_port=lambda _peer: int(origin["port"]),
    )
    index = Digest(bytes.fromhex(origin["index"]))
    weights = RemoteWeights(index, index, origin["index_bytes"], origin["total_bytes"], peer)
    rules = manifest_rules()
    members = [ForestMember(PeerId(one), 0, reachable=True) for one in (peer, streams.peer_id)]
    started = time.perf_counter()
    download_ = WeightsDownload(
        exchange,
        blobs,
        files,
        weights,
        members,
        stripes=rules["stripes"],
        fanout=rules["fanout"],
    )
    path = await download_.run(files.weights(1))
    seconds = time.perf_counter() - started
    assert isinstance(path, Path), path
    print(json.dumps({"seconds": seconds}), flush=True)
    await streams.close()


def manifest_rules() -> dict[str, int]:
    """Return the stripes and fan-out of the recipe for large models."""
    recipe = load_recipe((ROOT / "configs" / "runs" / "intellect2.toml").read_text())
    return {"stripes": recipe.shardcast.stripes, "fanout": recipe.shardcast.fanout}


async def be_plain(source: str) -> None:
    """Serve a file to all requests, with uvicorn alone."""
    import uvicorn  # noqa: PLC0415 - only this process needs it

    async def application(scope: Any, _receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        with Path(source).open("rb") as file:  # noqa: ASYNC230 - one open per request
            length = os.fstat(file.fileno()).st_size
            headers = [(b"content-length", b"%d" % length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while piece := await asyncio.to_thread(file.read, 1 << 20):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    port = free_port()
    config = uvicorn.Config(
        application, host=HOST, port=port, log_config=None, access_log=False, lifespan="off"
    )
    serving = asyncio.create_task(uvicorn.Server(config).serve())
    await asyncio.sleep(0.5)
    print(json.dumps({"port": port}), flush=True)
    await serving


PROCESSES: dict[str, Any] = {"origin": be_origin, "client": be_client, "plain": be_plain}

if __name__ == "__main__":
    main()
