"""Node that downloads one file from another, serves its chunks, and prints its progress."""

import asyncio
from pathlib import Path

from node.network.blobs.exchange import BlobExchange
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.weights.download import RemoteWeights, WeightsDownload
from protocol.core import crypto
from protocol.core.types import Digest, PeerId
from protocol.shardcast.forest import ForestMember
from tests.worlds.mortal import say
from tests.worlds.socket_streams import SocketStreams

ROOT, CHILD = PeerId("root"), PeerId("child")


async def download(
    directory: Path, sockets: Path, index: Digest, index_bytes: int, total: int
) -> None:
    blobs = FileBlobs(directory / "blobs")
    files = PolicyDirectory(directory / "weights", directory / "genesis", directory / "task", blobs)
    exchange = BlobExchange(SocketStreams(sockets, CHILD), blobs)
    await exchange.start()
    say("serves")
    weights = RemoteWeights(crypto.digest(b"version"), index, index_bytes, total, ROOT)
    members = [ForestMember(CHILD, 10**6, reachable=True)]
    await WeightsDownload(
        exchange,
        blobs,
        files,
        weights,
        members,
        stripes=4,
        fanout=4,
        on_progress=lambda here, _total: say("here", here),
    ).run(files.weights(1))
    say("done", exchange.received.total())
    await asyncio.sleep(3600)


def main(directory: str, sockets: str, index: str, index_bytes: str, total: str) -> None:
    name = Digest(bytes.fromhex(index))
    asyncio.run(download(Path(directory), Path(sockets), name, int(index_bytes), int(total)))
