"""Engines in real processes: equal numbers, and recovery from a crash."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from protocol.core.types import Digest
from roles.engines.factory import TransformersEngines
from roles.engines.subprocess import wire
from roles.engines.subprocess.client import ChildEngines
from roles.engines.subprocess.connection import CallTimeouts
from roles.engines.subprocess.process import EngineProcesses
from roles.engines.subprocess.supervisor import PAUSE_SECONDS_MIN
from roles.ports.engines import EngineError, GenerationRequest, Policy, VerificationRequest
from roles.ports.storage import StorageFullError
from simulations.runtime.loop import SimBackground
from tests.roles.engines.patches import chain, only_header
from tests.roles.engines.subprocess.engine_processes import (
    BRISK,
    calls_of,
    eventually,
    exists,
    tiny_manifest,
    wait_until,
)
from tests.roles.engines.training.batches import batch_of
from tests.worlds.small_disk import small_disk

MANIFEST = tiny_manifest()
REQUESTS = [GenerationRequest((2, 3, 4), seed, 6) for seed in (0, 1, 2**64 - 1)]


@pytest.fixture
def ours():
    """The engines in this process."""
    with ExitStack() as closing:

        def one(kind):
            engine = getattr(TransformersEngines("cpu"), kind)(MANIFEST)
            closing.callback(engine.close)
            return engine

        yield one


def claims(generations):
    return [
        VerificationRequest(one.prompt, one.seed, item.tokens, item.logprobs, item.proofs)
        for one, item in zip(REQUESTS, generations, strict=True)
    ]


async def stopped(engine):
    """Stop the process of an engine, and wait until it has stopped."""
    await eventually(lambda: engine.supervisor.pid is not None)
    os.kill(engine.supervisor.pid, signal.SIGSTOP)
    return engine.supervisor.pid


async def in_flight(engine, count=1):
    await eventually(lambda: calls_of(engine) == count)


async def test_generation_and_verification_are_those_of_our_own_engines(made, ours, policies):
    here, there = ours("generation"), made("generation", MANIFEST)
    for engine in (here, there):
        await engine.load(policies[0])
    generations = await there.generate(REQUESTS, 1.0)
    assert generations == await here.generate(REQUESTS, 1.0)
    assert await there.generate([], 1.0) == []
    ours_measures, measures = ours("verification"), made("verification", MANIFEST)
    for engine in (ours_measures, measures):
        await engine.load(policies[0])
        await engine.load(policies[1])
    lie = replace(claims(generations)[0], tokens=(99,))
    asked = [*claims(generations), lie]
    measured = await measures.measure(policies[0].version, asked, 1.0)
    assert measured == await ours_measures.measure(policies[0].version, asked, 1.0)
    assert measured[-1].proof_fault is not None
    assert measured != await measures.measure(policies[1].version, asked, 1.0)


async def test_training_is_that_of_our_own_engine(made, ours, policies, tmp_path):
    results = []
    for name, engine in (("here", ours("training")), ("there", made("training", MANIFEST))):
        await engine.load_policy(policies[0])
        weights, state = tmp_path / f"{name}.weights", tmp_path / f"{name}.state"
        metrics = await engine.step(batch_of())
        digest = await engine.write_policy(weights)
        await engine.save_state(state)
        await engine.step(batch_of(1))
        with pytest.raises(ValueError, match="does not hold the weights"):
            await engine.load_state(state, Digest(bytes(32)))
        await engine.load_state(state, digest)
        recomputed = await engine.recompute(policies[1], batch_of(2))
        again = await engine.step(recomputed)
        answers = await engine.evaluate([(2, 3), (4,)], 5)
        most = await engine.state_bytes_max()
        results.append((metrics, digest, recomputed, again, answers, most, weights.read_bytes()))
    assert results[0] == results[1]
    assert results[0][0].updates > 0


async def test_a_batch_in_many_frames_is_the_same(made, ours, policies, monkeypatch):
    monkeypatch.setattr(wire, "PART_BYTES", 1)
    here, there = ours("training"), made("training", MANIFEST)
    for engine in (here, there):
        await engine.load_policy(policies[0])
    found = await there.recompute(policies[1], batch_of())
    assert found == await here.recompute(policies[1], batch_of())
    assert await there.step(found) == await here.step(found)
    assert await there.policy_digest() == await here.policy_digest()


async def test_what_the_ports_document_is_raised_here(made, policies, tmp_path):
    generator, verifier = made("generation", MANIFEST), made("verification", MANIFEST)
    other = Policy(policies[0].version, policies[1].digest, policies[0].path)
    with pytest.raises(EngineError, match="no policy is loaded"):
        await generator.generate(REQUESTS, 1.0)
    for engine in (generator, verifier):
        with pytest.raises(ValueError, match="does not hold the policy"):
            await engine.load(other)
        await engine.load(policies[0])
    with pytest.raises(ValueError, match="temperature"):
        await generator.generate(REQUESTS, 0.0)
    with pytest.raises(LookupError, match="not kept"):
        await verifier.measure(policies[1].version, [], 1.0)
    pids = generator.supervisor.pid, verifier.supervisor.pid
    with small_disk(tmp_path / "disk", 200_000) as disk:
        trainer = made("training", MANIFEST)
        await trainer.load_policy(policies[0])
        disk.fill(10_000)
        for write in (trainer.write_policy, trainer.save_state):
            with pytest.raises(StorageFullError):
                await write(disk.path / "file")
        assert disk.names() == []
    assert pids == (generator.supervisor.pid, verifier.supervisor.pid), "nothing was restarted"


async def test_a_question_that_is_no_question_is_our_failure_and_no_verdict(made, policies):
    """A ``ValueError`` would mean a wrong policy, and its file would be deleted."""
    generator = made("generation", MANIFEST)
    with pytest.raises(EngineError):
        await generator.supervisor.call("load", replace(policies[0], path=Path("/x"), version=None))
    await generator.load(policies[0])


async def test_killed_in_the_middle_of_a_call_it_fails_once_and_has_the_policy_again(
    made, policies
):
    generator = made("generation", MANIFEST)
    await generator.load(policies[0])
    before = await generator.generate(REQUESTS, 1.0)
    pid = await stopped(generator)
    calls = [asyncio.create_task(generator.generate(REQUESTS, 1.0)) for _ in range(3)]
    await in_flight(generator, 3)
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(EngineError, match=r"killed by signal 9.* at \d+ MB"):
            await call
    assert not exists(pid)
    assert await generator.generate(REQUESTS, 1.0) == before
    assert generator.supervisor.pid != pid


async def test_a_policy_is_swapped_between_the_calls_before_it_and_those_after_it(made, policies):
    """Records written by threads are not in order."""
    generator = made("generation", MANIFEST)
    expected = []
    for policy in policies:
        await generator.load(policy)
        expected.append(await generator.generate(REQUESTS * 200, 1.0))
    assert expected[0] != expected[1]
    before = [asyncio.create_task(generator.generate(REQUESTS * 200, 1.0)) for _ in range(2)]
    await asyncio.sleep(0)
    swap = asyncio.create_task(generator.load(policies[0]))
    await asyncio.sleep(0)
    after = [asyncio.create_task(generator.generate(REQUESTS * 200, 1.0)) for _ in range(2)]
    assert [await call for call in before] == [expected[1]] * 2
    await swap
    assert [await call for call in after] == [expected[0]] * 2


async def test_patches_are_staged_in_the_process_and_swapped(made, ours, tmp_path):
    policies = chain(tmp_path, count=3, share=0.01)
    here, there = ours("generation"), made("generation", MANIFEST)
    await here.load(policies[2])
    await there.load(policies[0])
    for policy in policies[1:]:
        only_header(policy.path)
        assert await there.stage(policy)
    await there.load(policies[2])
    assert await there.generate(REQUESTS, 1.0) == await here.generate(REQUESTS, 1.0)
    assert there.first_token.version == 2  # known after the first call


async def test_calls_that_break_together_are_one_failure(made, policies):
    """Two failures in a row replace the process."""
    generator = made("generation", MANIFEST)
    await generator.load(policies[0])
    pid = generator.supervisor.pid
    broken = replace(REQUESTS[0], prompt=(2**40,))
    calls = [generator.generate([broken], 1.0) for _ in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in results] == [EngineError] * 3
    assert await generator.generate(REQUESTS, 1.0)
    assert generator.supervisor.pid == pid


async def test_killed_between_calls_nobody_notices(made, policies):
    verifier, generator = made("verification", MANIFEST), made("generation", MANIFEST)
    for policy in policies:
        await generator.load(policy)
        await verifier.load(policy)
    claimed = claims(await generator.generate(REQUESTS, 1.0))
    before = [await verifier.measure(policy.version, claimed, 1.0) for policy in policies]
    for engine in (verifier, generator):
        pid = engine.supervisor.pid
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda engine=engine: engine.supervisor.pid is None)
    assert [await verifier.measure(one.version, claimed, 1.0) for one in policies] == before
    assert claims(await generator.generate(REQUESTS, 1.0)) == claimed


async def test_a_verifier_that_is_replaced_has_what_it_kept_and_no_more(made, policies, tmp_path):
    verifier = made("verification", MANIFEST)
    gone = tmp_path / "gone"
    gone.write_bytes(policies[1].path.read_bytes())
    await verifier.load(replace(policies[1], path=gone))
    kept = MANIFEST.grpo.async_level + 2
    for version in range(5, 5 + kept - 1):
        await verifier.load(replace(policies[0], version=version))
    gone.unlink()
    os.kill(verifier.supervisor.pid, signal.SIGKILL)
    await eventually(lambda: verifier.supervisor.pid is None)
    assert await verifier.measure(5, [], 1.0) == []
    with pytest.raises(LookupError):
        await verifier.measure(policies[1].version, [], 1.0)


async def test_a_trainer_that_is_replaced_has_nothing_loaded(made, policies, tmp_path):
    trainer = made("training", MANIFEST)
    await trainer.load_policy(policies[0])
    os.kill(trainer.supervisor.pid, signal.SIGKILL)
    await eventually(lambda: trainer.supervisor.pid is None)
    for call in (
        lambda: trainer.step(batch_of()),
        lambda: trainer.write_policy(tmp_path / "policy"),
        lambda: trainer.recompute(policies[0], batch_of()),
    ):
        with pytest.raises(EngineError, match="no policy is loaded"):
            await call()
    await trainer.load_policy(policies[0])
    assert (await trainer.step(batch_of())).updates > 0


async def test_a_process_that_hangs_is_killed_and_replaced(made, policies):
    generator = made("generation", MANIFEST, patience=replace(BRISK, silence_seconds=1.0))
    await generator.load(policies[0])
    pid = await stopped(generator)
    with pytest.raises(EngineError, match="no heartbeat for 1 s"):
        await generator.generate(REQUESTS, 1.0)
    assert not exists(pid)
    assert len(await generator.generate(REQUESTS, 1.0)) == len(REQUESTS)


async def test_memory_has_a_limit_that_fails_the_call_and_not_the_node(made, policies):
    """RLIMIT_DATA counts the memory of the forked process, some 100 MB."""
    generator = made("generation", MANIFEST, memory_bytes_max=600_000_000)
    await generator.load(policies[0])
    before = await generator.generate(REQUESTS, 1.0)
    many = [GenerationRequest((2,) * 100, seed, 2000) for seed in range(3000)]
    # oneDNN cannot create a primitive without it.
    with pytest.raises(EngineError, match=r"(?i)memory|alloc|primitive"):
        await generator.generate(many, 1.0)
    assert await generator.generate(REQUESTS, 1.0) == before


@pytest.mark.slow
async def test_the_process_has_a_clean_environment_and_ignores_the_terminal(secret, policies):
    processes = EngineProcesses()
    generator = ChildEngines(
        processes, SimBackground(), Path("nowhere"), "cpu", patience=BRISK
    ).generation(MANIFEST)
    try:
        await generator.load(policies[0])
        pid = generator.supervisor.pid
        text = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"OMP_NUM_THREADS=1\0" in text
        assert b"a secret" not in text
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, signal.SIGINT)
        assert len(await generator.generate(REQUESTS, 1.0)) == len(REQUESTS)
        assert generator.supervisor.pid == pid
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) > int(
            Path("/proc/self/oom_score_adj").read_text()
        )
        server = psutil.Process(pid).ppid()
        os.kill(pid, signal.SIGSTOP)  # so it cannot notice that its socket is closed
        os.kill(server, signal.SIGKILL)
        try:
            await eventually(lambda: not exists(pid), 20)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await eventually(lambda: generator.supervisor.pid is None)
        assert len(await generator.generate(REQUESTS, 1.0)) == len(REQUESTS), "a new fork server"
    finally:
        await generator.supervisor.close()
        processes.close()


def test_a_fork_server_has_one_thread(fork_server):
    """A fork copies the locks of the other threads, but not the threads that would release them."""
    assert len(list(Path(f"/proc/{fork_server[1].pid}/task").iterdir())) == 1


@pytest.mark.parametrize(
    ("python", "told"),
    [
        (Path("/no/such/python"), "No such file"),
        (Path("/bin/false"), "started no engine process"),
        (Path("/usr/bin/python3"), "No module named|started no engine process"),
    ],
)
async def test_an_interpreter_without_the_engines_is_told(python, told, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    processes = EngineProcesses(python)
    try:
        with pytest.raises(EngineError, match=told) as raised:
            await processes.fork(20)
        assert str(python) in str(raised.value)
    finally:
        processes.close()


needs_no_vllm = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")


@needs_no_vllm
async def test_an_engine_that_the_interpreter_does_not_have_is_told_by_its_role_alone(
    made, policies
):
    """Only generation uses vLLM: a validator of such a node computes with the built-in engine."""
    with pytest.raises(EngineError, match=r"no engine: ModuleNotFoundError: .*vllm"):
        await made("generation", MANIFEST, engine="vllm", gpus=2).load(policies[0])
    await made("verification", MANIFEST, engine="vllm").load(policies[0])
    assert await made("training", MANIFEST, engine="vllm").state_bytes_max()


@needs_no_vllm
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
async def test_a_fork_server_that_cannot_import_its_engine_is_told(engine):
    processes = EngineProcesses(engine=engine)
    try:
        with pytest.raises(EngineError, match="started no engine process"):
            await processes.fork(60)
    finally:
        processes.close()


async def test_a_fork_server_that_is_gone_is_told(tmp_path):
    processes = EngineProcesses(shared=tmp_path / "none.sock")
    with pytest.raises(EngineError, match=r"none\.sock"):
        await processes.fork(5)


OWNER = """
import asyncio, sys
from pathlib import Path
import psutil
from roles.engines.subprocess.client import ChildEngines
from roles.engines.subprocess.process import EngineProcesses
from roles.engines.subprocess.supervisor import EngineSupervisor
from simulations.runtime.loop import SimBackground
from tests.roles.engines.subprocess.engine_processes import BRISK, make, tiny_manifest

async def nothing(group):
    pass

async def main():
    processes = EngineProcesses()
    engines = ChildEngines(processes, SimBackground(), Path("nowhere"), "cpu")
    made = [engines.generation(tiny_manifest()), engines.training(tiny_manifest())]
    await made[1].state_bytes_max()
    while made[0].supervisor.pid is None:
        await asyncio.sleep(0.05)
    await EngineSupervisor(processes, make("verification"), BRISK, nothing, ("cpu", "cpu")).start()
    assert "torch" not in sys.modules
    server = psutil.Process(processes._server.pid)
    pids = [one.pid for one in server.children()]
    assert len(pids) == 4, "two engines of one process, and one of two ranks"
    print("pids", [server.pid, *pids], flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine_hangs", [False, True])
def test_no_orphan_is_left_of_a_daemon_that_was_killed(engine_hangs):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            lines = iter(owner.stdout.readline, "")
            pids = json.loads(next(line for line in lines if line.startswith("pids"))[5:])
            assert all(map(exists, pids))
            if engine_hangs:
                for pid in pids[1:]:
                    os.kill(pid, signal.SIGSTOP)
        finally:
            owner.kill()
    wait_until(lambda: not any(map(exists, pids)))


async def test_a_process_that_fails_again_and_again_is_replaced(made, policies):
    """An illegal access, for example, leaves the device unusable."""
    trainer = made("training", MANIFEST)
    pids = []
    for _ in range(3):
        with pytest.raises(EngineError, match="no policy is loaded"):
            await trainer.step(batch_of())
        pids.append(trainer.supervisor.pid)
    assert pids[0] is not None
    assert pids[1] is None
    await trainer.load_policy(policies[0])
    assert trainer.supervisor.pid not in (None, pids[0])
    assert (await trainer.step(batch_of())).updates > 0


async def test_a_process_that_keeps_dying_is_replaced_after_pauses(made, policies):
    generator = made("generation", MANIFEST, patience=CallTimeouts(silence_seconds=3))
    await generator.load(policies[0])
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(3):
        await stopped(generator)
        call = asyncio.create_task(generator.generate(REQUESTS, 1.0))
        await in_flight(generator)
        os.kill(generator.supervisor.pid, signal.SIGKILL)
        with pytest.raises(EngineError):
            await call
        started_at = loop.time()
        again = asyncio.create_task(generator.supervisor.start())
        await again
        times.append(loop.time() - started_at)
    assert times[1] >= PAUSE_SECONDS_MIN and times[2] >= 2 * PAUSE_SECONDS_MIN
