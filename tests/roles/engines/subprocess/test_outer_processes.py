"""Rounds of two trainers in engine processes, with one and with two ranks."""

import asyncio

import pytest

from protocol.core.types import Digest
from protocol.messages import ROUND_TRAINERS_MAX
from roles.ports.engines import EngineError
from roles.ports.storage import StorageFullError
from tests.roles.engines.subprocess.engine_processes import tiny_manifest
from tests.roles.engines.training.batches import batch_of
from tests.worlds.small_disk import small_disk

RUN = tiny_manifest(grpo={"outer": {"trainers": 2}, "weight_decay": 0.0})


async def difference_of(engine, seeds, path):
    for seed in seeds:
        assert (await engine.step(batch_of(seed))).updates
    return await engine.write_difference(path), path


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1)], ids=["one rank each", "two ranks and one"])
async def test_two_trainers_have_equal_policies_after_a_round(made, policies, tmp_path, ranks):
    engines = [made("training", RUN, training_devices=("cpu",) * count) for count in ranks]
    assert tuple(engine.ranks for engine in engines) == ranks
    digests = [policies[0].digest]
    for engine in engines:
        await engine.load_policy(policies[0])
    for number in range(2):
        for engine in engines:
            await engine.step(batch_of(99))
            assert await engine.policy_digest() != digests[-1]
            await engine.begin_round()
            assert await engine.policy_digest() == digests[-1]
        files = [
            await difference_of(engine, (number, 10 + place), tmp_path / f"{number}-{place}")
            for place, engine in enumerate(engines)
        ]
        for engine in engines:
            for file in files:
                await engine.check_difference(*file)
            await engine.apply_differences(files)
        (digest,) = {await engine.policy_digest() for engine in engines}
        assert digest not in digests
        digests.append(digest)
    states = [tmp_path / f"state-{place}" for place in range(2)]
    for engine, state in zip(engines, states, strict=True):
        await engine.save_state(state)
    await engines[0].load_state(states[1], digests[-1])
    assert await engines[0].policy_digest() == digests[-1]


@pytest.mark.parametrize("ranks", [1, 2])
async def test_errors_of_rounds_are_raised_here_and_nothing_is_restarted(
    made, policies, tmp_path, ranks
):
    engine = made("training", RUN, training_devices=("cpu",) * ranks)
    await engine.load_policy(policies[0])
    digest, path = await difference_of(engine, (1,), tmp_path / "d")
    pids = engine.supervisor.pids
    wrong = Digest(bytes(32))
    with pytest.raises(ValueError, match="does not hold the difference"):
        await engine.check_difference(wrong, path)
    with pytest.raises(ValueError, match="does not hold the difference"):
        await engine.apply_differences([(digest, path), (wrong, path)])
    with pytest.raises(ValueError, match="no difference"):
        await engine.apply_differences([])
    with small_disk(tmp_path / "disk", 200_000) as disk:
        disk.fill(10_000)
        with pytest.raises(StorageFullError):
            await engine.write_difference(disk.path / "file")
        assert disk.names() == []
    assert await engine.write_difference(path) == digest
    await engine.apply_differences([(digest, path)] * ROUND_TRAINERS_MAX)
    assert engine.supervisor.pids == pids
    with pytest.raises(EngineError):
        await engine.apply_differences([(digest, path)] * (ROUND_TRAINERS_MAX + 1))


async def test_rounds_of_a_run_without_outer_steps_are_refused(made, policies, tmp_path):
    engine = made("training", tiny_manifest())
    await engine.load_policy(policies[0])
    with pytest.raises(RuntimeError, match="no outer steps"):
        await engine.begin_round()


async def test_files_are_written_while_a_round_begins(made, policies, tmp_path):
    engine = made("training", RUN, training_devices=("cpu",) * 2)
    await engine.load_policy(policies[0])
    await engine.apply_differences([await difference_of(engine, (1, 2), tmp_path / "d")])
    policy = await engine.policy_digest()
    written, _, _, _ = await asyncio.gather(
        engine.write_policy(tmp_path / "policy"),
        engine.save_state(tmp_path / "state"),
        engine.begin_round(),
        engine.begin_step(batch_of(3)),
    )
    assert written == policy
    assert (await engine.end_step()).updates
    await engine.load_state(tmp_path / "state", policy)
    assert await engine.policy_digest() == policy
