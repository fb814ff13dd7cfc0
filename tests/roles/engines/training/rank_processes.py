"""Training engines as ranks: each in a process that is forked from one with torch imported."""

import asyncio
import multiprocessing
import tempfile
import traceback
from pathlib import Path

from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.ranks import join

DEADLINE_SECONDS = 240.0
"""Far more than any test needs; ranks that hang end with it."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__, "tests.roles.engines.training.test_ranks"])


def on_ranks(count, work, *arguments, **layout):
    """Return what ``await work(engine, rank, *arguments)`` returns on each of ``count`` ranks.

    ``layout`` has the engine's arguments, ``sections`` among them. An exception of a rank is
    raised here, with its traceback.
    """
    with tempfile.TemporaryDirectory() as directory:
        pipes, processes = [], []
        for rank in range(count):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            place = (rank, count, str(Path(directory) / "rendezvous"))
            process = _CONTEXT.Process(
                target=_be_rank, args=(theirs, place, layout, work, arguments), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return [_received(pipe) for pipe in pipes]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _received(pipe):
    if not pipe.poll(DEADLINE_SECONDS):
        raise TimeoutError("a rank has not finished")
    result, failure = pipe.recv()
    if failure is not None:
        raise AssertionError(failure)
    return result


def _be_rank(pipe, place, layout, work, arguments):
    try:
        pipe.send((asyncio.run(_worked(place, dict(layout), work, arguments)), None))
    except Exception:  # noqa: BLE001 - told to the test
        pipe.send((None, traceback.format_exc()))


async def _worked(place, layout, work, arguments):
    sections = layout.pop("sections")
    engine = TorchTrainingEngine(*sections, ranks=join(*place, "cpu"), **layout)
    return await work(engine, place[0], *arguments)
