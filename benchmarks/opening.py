"""CPU cost to a node of a peer's new stream: ``OPEN_SECONDS`` of simulated cores.

``python -m benchmarks.opening [--streams N] [--at-once N] [--json]``: one node opens streams to
another in a separate process, which closes each unread. It prints core microseconds per stream of
the second node's process and of its p2pd, the median of three runs.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from benchmarks.shardcast.transport import transport as start
from roles.ports.transport import Stream, TransportError

PROTOCOL = "/prime-node/benchmark/opening"
RUNS = 3
SETTLE_SECONDS = 0.5
SERVE = "serve"


async def serve() -> None:
    """Print this node's address; then, per input line, the streams opened and CPU time used."""
    opened = 0

    async def close(_stream: Stream) -> None:
        nonlocal opened
        opened += 1

    with tempfile.TemporaryDirectory() as directory:
        transport = await start(Path(directory), 1)
        try:
            await transport.handle(PROTOCOL, close)
            print((await transport.addresses())[0], flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                times = psutil.Process(transport.p2pd_pid).cpu_times()
                print(json.dumps([opened, time.process_time(), times.user + times.system]))
                sys.stdout.flush()
        finally:
            await transport.close()


async def ask(server: Process) -> list[float]:
    """Return the next line that ``serve`` prints."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(b"\n")
    answer: list[float] = json.loads(await server.stdout.readline())
    return answer


async def measure(streams: int, at_once: int) -> list[tuple[float, float]]:
    """Return microseconds per stream of node process and p2pd, for each run."""
    command = [sys.executable, "-m", "benchmarks.opening", "--do", SERVE]
    server = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    address = (await server.stdout.readline()).decode().strip()
    found = []
    with tempfile.TemporaryDirectory() as directory:
        transport = await start(Path(directory), 2)
        try:
            peer = await transport.connect(address)

            async def opens(count: int) -> None:
                for _ in range(count):
                    with suppress(TransportError):
                        stream = await transport.open_stream(peer, PROTOCOL)
                        with suppress(TransportError):
                            await stream.read(1)  # returns when the other end closes
                        await stream.close()

            await opens(at_once)
            for _ in range(RUNS):
                before = await ask(server)
                await asyncio.gather(*(opens(streams // at_once) for _ in range(at_once)))
                await asyncio.sleep(SETTLE_SECONDS)
                after = await ask(server)
                opened, *seconds = (one - other for one, other in zip(after, before, strict=True))
                node, p2pd = (1e6 * each / opened for each in seconds)
                found.append((node, p2pd))
        finally:
            server.stdin.close()
            await server.wait()
            await transport.close()
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--do", choices=[SERVE], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do == SERVE:
        asyncio.run(serve())
        return
    runs = asyncio.run(measure(arguments.streams, arguments.at_once))
    node, p2pd = map(median, zip(*runs, strict=True))
    if arguments.json:
        print(json.dumps({"node_us": round(node), "p2pd_us": round(p2pd)}))
    else:
        print(f"cost of a stream: {node:.0f} us in the node and {p2pd:.0f} us in p2pd")


if __name__ == "__main__":
    main()
