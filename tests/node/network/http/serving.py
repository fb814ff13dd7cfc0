"""Process that serves one blob over HTTP, with the daemon's loop and short deadlines."""

import asyncio
from pathlib import Path

import uvloop

from node.network.http.rate_limit import ConnectionLimits
from tests.node.network.http.faces import DATA, WEIGHTS, face
from tests.worlds.mortal import say

DEADLINE_SECONDS = 1.0
"""Deadline of a request head, and of a reader that reads nothing."""

LIMITS = ConnectionLimits(head_seconds=DEADLINE_SECONDS, stall_seconds=DEADLINE_SECONDS)
LARGE = bytes(20_000_000)


async def serve(directory: Path) -> None:
    async with face(directory, connections=LIMITS) as served:
        await served.blobs.put(DATA, WEIGHTS)
        large = await served.blobs.put(LARGE, WEIGHTS)
        say(served.port, f"/blobs/{large.hex()}")
        await asyncio.sleep(3600)


def main(directory: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(directory)))
