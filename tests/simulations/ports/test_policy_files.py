"""Duration of work on weights, if a scenario sets a rate."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.core.rng import Rng
from protocol.core.types import Digest, Version
from roles.ports.engines import Policy
from roles.ports.storage import Purpose
from simulations.ports.blobs import SimBlobs
from simulations.ports.engines import SimEngines
from simulations.ports.policy_files import SimPolicyFiles
from simulations.ports.storage import COMMIT_SECONDS, Disk, Session
from simulations.runtime.content import Extent, patch_of, policy_digest
from simulations.runtime.loop import run_virtual
from simulations.scenario.scenario import Compute, Workload
from tests.worlds.messages import run_manifest

BASE, TARGET, ENCODING = Path("v1.safetensors"), Path("v2.safetensors"), Path("v2.encoding")
BEFORE, AFTER = Extent.of(b"before", 0, 10_000), Extent.of(b"after", 0, 10_000)
SHARE = 0.01
POLICY = Policy(Version(1), policy_digest(BEFORE), BASE)
PATCH = patch_of(AFTER, POLICY.digest, SHARE)
FREE, SLOW = Compute(), Compute(weights_bytes_per_second=1000)


def a_disk() -> Disk:
    return Disk(files={BASE: BEFORE, TARGET: AFTER})


def files(compute: Compute, disk: Disk | None = None) -> SimPolicyFiles:
    disk, here = disk or a_disk(), Path("here")
    return SimPolicyFiles(disk, Session(), here, here, here, patch_share=SHARE, compute=compute)


def publishing_seconds(compute: Compute, disk: Disk, path: Path) -> float:
    blobs = SimBlobs(disk, Session(), compute=compute)
    return seconds(blobs.put_file(path, 5000, 1000, Purpose.WEIGHTS))


def seconds(work: Any) -> float:
    """Return the virtual seconds that a coroutine takes."""

    async def timed() -> float:
        await work
        return asyncio.get_running_loop().time()

    return run_virtual(timed())


async def arriving(pause_seconds: float) -> AsyncIterator[bytes]:
    """Yield the patch in ten pieces with pauses before them."""
    for start in range(0, len(PATCH), len(PATCH) // 10):
        await asyncio.sleep(pause_seconds)
        yield PATCH[start : start + len(PATCH) // 10]


def decoding_seconds(compute: Compute, pause_seconds: float) -> float:
    made = policy_digest(AFTER)
    pieces = arriving(pause_seconds)
    return seconds(files(compute).decode(pieces, POLICY, Path("made"), made, len(AFTER)))


@pytest.mark.parametrize(("compute", "passes"), [(FREE, 0), (SLOW, 10)])
def test_hashing_and_encoding_go_through_the_file_once(compute: Compute, passes: int) -> None:
    near = pytest.approx(passes + COMMIT_SECONDS)
    assert publishing_seconds(compute, a_disk(), TARGET) == near
    assert seconds(files(compute).encode(TARGET, POLICY, ENCODING)) == near


def test_an_encoding_is_hashed_as_fast_as_it_is_short() -> None:
    disk = a_disk()
    run_virtual(files(SLOW, disk).encode(TARGET, POLICY, ENCODING))
    hashing_seconds = publishing_seconds(SLOW, disk, ENCODING)
    assert hashing_seconds == pytest.approx(0.1 + COMMIT_SECONDS)


def test_decoding_takes_as_long_as_the_file_that_it_makes() -> None:
    assert decoding_seconds(FREE, 0.0) == pytest.approx(COMMIT_SECONDS)
    assert decoding_seconds(SLOW, 0.0) == pytest.approx(10 + COMMIT_SECONDS)


def test_a_patch_is_decoded_while_it_arrives() -> None:
    """A piece arrives every two seconds and takes one second to decode."""

    async def into(queue: "asyncio.Queue[bytes]") -> None:
        async for piece in arriving(2.0):
            queue.put_nowait(piece)

    async def both() -> None:
        queue = asyncio.Queue[bytes]()
        bringing = asyncio.create_task(into(queue))

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield await queue.get()

        made = policy_digest(AFTER)
        await files(SLOW).decode(pieces(), POLICY, Path("made"), made, len(AFTER))
        await bringing

    assert seconds(both()) == pytest.approx(20 + 1 + COMMIT_SECONDS)


@pytest.mark.parametrize("content", [b"a difference", Extent.of(b"a difference", 0, 12_345)])
def test_a_difference_goes_from_one_disk_to_another(content: bytes) -> None:
    """Also one of a length that its content only states."""
    disk = Disk()
    got = files(FREE, disk)
    path = got.difference(7, 1)
    one, other = SimBlobs(Disk(files={path: content}), Session()), SimBlobs(disk, Session())

    async def copied() -> None:
        stored = await one.put_file(path, 5000, 1000, Purpose.DIFFERENCE)
        assert stored.total_bytes == len(content)
        for number, arriving in enumerate(await other.open_file(stored.index, Purpose.DIFFERENCE)):
            shard = content[number * 5000 : (number + 1) * 5000]
            for chunk in arriving.missing():
                assert await arriving.write_chunk(chunk, shard[chunk * 1000 : (chunk + 1) * 1000])
        await got.link(stored.digest, path)
        assert got.size(path) == len(content)
        assert disk.files[path] == content
        (owner,) = other.owners(Purpose.DIFFERENCE)
        await other.release(owner)
        assert not disk.blobs

    run_virtual(copied())
    assert got.differences() == {path: 7}
    run_virtual(got.delete(path))
    assert got.differences() == {}


@pytest.mark.parametrize(("compute", "passes"), [(FREE, 0), (SLOW, 10)])
def test_a_trainer_writes_weights_and_state_before_it_goes_on(
    compute: Compute, passes: int
) -> None:
    disk = Disk(files={BASE: BEFORE})
    workload = Workload(weights_bytes=len(BEFORE), state_bytes=6 * len(BEFORE))
    engines = SimEngines(disk, compute, workload, Rng(b"seed"), lambda _kind, **_facts: None)
    training = engines.training(run_manifest())
    run_virtual(training.load_policy(Policy(Version(1), Digest(POLICY.digest), BASE)))
    assert seconds(training.write_policy(TARGET)) == pytest.approx(passes)
    assert seconds(training.save_state(Path("v2.state"))) == pytest.approx(6 * passes)
    assert policy_digest(disk.files[TARGET]) == POLICY.digest
