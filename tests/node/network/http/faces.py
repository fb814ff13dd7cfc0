"""A weights server on loopback with a blob store of its own, and raw requests to it."""

import asyncio
import random
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from node.network.blobs.traffic_stats import TrafficStats
from node.network.http.application import Application, ResponseLimits
from node.network.http.catalog import Catalogue
from node.network.http.rate_limit import ConnectionLimits
from node.network.http.server import WeightsServer
from node.network.resources.upload_scheduler import UploadScheduler
from node.storage.blobs import FileBlobs
from protocol.core import crypto
from protocol.core.types import Version
from roles.ports.engines import Policy
from roles.ports.storage import Owner, Purpose

HOST = "127.0.0.1"
DATA = random.Random(1).randbytes(700_001)
DIGEST = crypto.digest(DATA)
WEIGHTS = Owner(Purpose.WEIGHTS, crypto.digest(b"an index"))
BODY = Owner(Purpose.ROLLOUT_BODY, crypto.digest(b"a commit"))
BLOB = f"/blobs/{DIGEST.hex()}"


@dataclass
class Face:
    blobs: FileBlobs
    server: WeightsServer
    application: Application
    port: int
    policies: dict[Version, Policy]
    sent: TrafficStats = field(default_factory=TrafficStats)


@asynccontextmanager
async def face(
    directory: Path,
    *,
    connections: ConnectionLimits | None = None,
    responses: ResponseLimits | None = None,
    cap: UploadScheduler | None = None,
    trusted: Callable[[str], bool] = lambda _address: False,
):
    blobs, policies, sent = FileBlobs(directory / "blobs"), {}, TrafficStats()
    catalogue = Catalogue(blobs, lambda: policies)
    application = Application(catalogue, cap or UploadScheduler(None), sent, responses, trusted)
    listener = socket.create_server((HOST, 0))
    server = WeightsServer(listener, application, connections)
    await server.start()
    try:
        yield Face(blobs, server, application, listener.getsockname()[1], policies, sent)
    finally:
        await server.stop()
        await server.stop()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


def request(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


async def exchange(port: int, data: bytes) -> list[Reply]:
    """Send ``data``; return the answers until the server closes (request it)."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    rest = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    replies = []
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        empty = data.startswith(b"HEAD") or first.split()[1] == "304"
        length = 0 if empty else int(headers.get("content-length", len(rest)))
        replies.append(Reply(int(first.split()[1]), headers, rest[:length]))
        rest = rest[length:]
    return replies


async def get(port: int, path: str, *lines: str, method: str = "GET") -> Reply:
    (reply,) = await exchange(port, request(path, *lines, "Connection: close", method=method))
    return reply
