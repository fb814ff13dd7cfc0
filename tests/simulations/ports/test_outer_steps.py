"""Modelled outer steps: equal policies on all trainers, and files that are stored like weights."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.rng import Rng
from protocol.core.types import Digest, Version
from roles.ports.engines import Policy, TrainingSequence
from roles.ports.storage import Purpose
from simulations.ports.blobs import SimBlobs
from simulations.ports.engines import SimEngines
from simulations.ports.policy_files import SimPolicyFiles
from simulations.ports.storage import Disk, Session
from simulations.ports.sums import policy_seed, skill_of
from simulations.runtime.content import Extent, poisoned_seed, policy_digest
from simulations.runtime.loop import run_virtual
from simulations.scenario.scenario import Compute, Workload
from tests.worlds.messages import run_manifest

WEIGHTS_BYTES = 40_000
WORKLOAD = Workload(weights_bytes=WEIGHTS_BYTES, tokens_mean=4, skill=0.3, learning_rate=0.1)
GENESIS = Extent.of(policy_seed(0.3, b"genesis"), 0, WEIGHTS_BYTES)
START = Policy(Version(0), policy_digest(GENESIS), Path("v0"))
STATE = Path("state")


def manifest(**outer):
    return run_manifest(grpo={"outer": {"trainers": 2} | outer, "weight_decay": 0.0})


class Machine:
    """A trainer with its disk, on which version 0 lies."""

    def __init__(self, run=None, compute=None):
        self.disk, self.events = Disk(files={START.path: GENESIS}), []

        def emit(kind, **facts):
            self.events.append((kind, facts))

        engines = SimEngines(self.disk, compute or Compute(), WORKLOAD, Rng(b"seed"), emit)
        self.engine = engines.training(run or manifest())

    async def step(self, number, share=1):
        """Take a step of 4 groups, a ``share`` of which has unequal rewards."""
        await self.engine.step(
            [
                TrainingSequence(
                    group, (2, 3), (4, number % 8, 1), (-0.5,) * 3, float(one and group < 4 * share)
                )
                for group in range(4)
                for one in range(2)
            ]
        )

    async def difference(self, path, seeds=(), share=1):
        for seed in seeds:
            await self.step(seed, share)
        return await self.engine.write_difference(path), path

    async def skill(self):
        await self.engine.write_policy(Path("policy"))
        return skill_of(self.disk.files[Path("policy")].seed)


def send(source, target, path):
    target.disk.files[path] = source.disk.files[path]


async def two(**outer):
    machines = [Machine(manifest(**outer)) for _ in range(2)]
    for one in machines:
        await one.engine.load_policy(START)
    return machines


async def rounds(machines, number, seeds=(1, 2)):
    """Train on other batches on each machine, and take the outer step by all differences."""
    files = [
        await one.difference(Path(f"{number}-{place}"), [100 * place + seed for seed in seeds])
        for place, one in enumerate(machines)
    ]
    for source, file in zip(machines, files, strict=True):
        for target in machines:
            send(source, target, file[1])
    for one in machines:
        await one.engine.apply_differences(files)
    return files


def test_trainers_have_equal_policies_and_the_mean_of_their_gains():
    async def played():
        first, second = await two()
        one = await first.difference(Path("a"), (1, 2), share=1)
        other = await second.difference(Path("b"), (3, 4), share=0.5)
        best, worse = await first.skill(), await second.skill()
        send(first, second, Path("a"))
        send(second, first, Path("b"))
        for machine in (first, second):
            await machine.engine.apply_differences([one, other])
        assert await first.engine.policy_digest() == await second.engine.policy_digest()
        assert await first.skill() == pytest.approx((best + worse) / 2, abs=2e-6)
        assert 0.3 < worse < best
        kind, facts = first.events[-2]
        assert (kind, facts["parent"]) == ("outer-step", START.digest.hex())
        assert facts["policy"] == (await second.engine.policy_digest()).hex()
        assert facts["differences"] == f"{one[0].hex()},{other[0].hex()}"

    run_virtual(played())


CALLS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from(["step", "begin", "again", "save"]))
    | st.tuples(st.just(-1), st.sampled_from(["both", "reversed", "last", "reload"])),
    max_size=25,
)


@given(CALLS)
def test_after_each_outer_step_all_trainers_have_equal_policies(calls):
    run_virtual(played(calls))


async def reload(machines, known):
    for one in machines:
        await one.engine.begin_round()
        await one.engine.save_state(STATE)
        await one.engine.load_state(STATE, known)


async def join(machines, number, call):
    """Take the outer step by the chosen differences; return the policy of all machines."""
    files = [await one.difference(Path(f"{number}-{n}")) for n, one in enumerate(machines)]
    send(machines[0], machines[1], files[0][1])
    send(machines[1], machines[0], files[1][1])
    chosen = {"both": files, "reversed": files[::-1]}.get(call, files[1:])
    for one in machines:
        await one.engine.apply_differences(chosen)
    (known,) = {await one.engine.policy_digest() for one in machines}
    return known


async def played(calls):
    machines, known, steps = await two(), START.digest, [0, 0]
    seen = {known}
    for number, (place, call) in enumerate(calls):
        if call == "reload":
            await reload(machines, known)
            steps = [0, 0]
            continue
        if place < 0:
            known, steps = await join(machines, number, call), [0, 0]
            assert known not in seen, "each outer step makes another policy"
            seen.add(known)
            continue
        engine = machines[place].engine
        if call == "again":
            await engine.begin_round()
            steps[place] = 0
        elif call == "save" and not steps[place]:
            await engine.save_state(STATE)
        elif steps[place] < 2:
            if call == "step":
                await machines[place].step(number)
                steps[place] += 1
            elif call == "begin":
                await engine.begin_step([])
        assert (await engine.policy_digest() == known) == (steps[place] == 0)


def test_the_order_and_the_momentum_decide_the_policy():
    async def played():
        first, second = await two()
        files = await rounds([first, second], 0)
        policy = await first.engine.policy_digest()
        await first.engine.write_policy(Path("v1"))
        await first.engine.save_state(STATE)
        send(first, second, Path("v1"))
        send(first, second, STATE)
        await second.engine.load_policy(Policy(Version(1), policy, Path("v1")))
        again = [await one.difference(Path("c"), (5,)) for one in (first, second)]
        assert again[0] == again[1]
        for one in (first, second):
            await one.engine.apply_differences(again[:1])
        assert await first.engine.policy_digest() != await second.engine.policy_digest()
        await second.engine.load_state(STATE, policy)
        await second.engine.apply_differences(again[:1])
        assert await first.engine.policy_digest() == await second.engine.policy_digest()
        third = Machine()
        await third.engine.load_policy(START)
        for _, path in files:
            send(first, third, path)
        await third.engine.apply_differences(files[::-1])
        assert await third.engine.policy_digest() != policy

    run_virtual(played())


def test_a_round_has_its_steps_and_no_state():
    async def played():
        (machine, _) = await two(inner_steps=2)
        await machine.difference(Path("a"), (1, 2))
        with pytest.raises(RuntimeError, match="round has its 2 steps"):
            await machine.step(3)
        with pytest.raises(RuntimeError, match="beginning"):
            await machine.engine.save_state(STATE)
        await machine.engine.begin_round()
        assert await machine.engine.policy_digest() == START.digest
        await machine.engine.begin_step([])
        await machine.engine.begin_round()
        with pytest.raises(RuntimeError, match="no step has begun"):
            await machine.engine.end_step()
        await machine.engine.save_state(STATE)
        assert len(machine.disk.files[STATE]) == await machine.engine.state_bytes_max()
        with pytest.raises(ValueError, match="is not the state"):
            await machine.engine.load_state(STATE, Digest(bytes(32)))
        with pytest.raises(ValueError, match="momentum is not that of"):
            await machine.engine.load_state(STATE, START.digest, START)

    run_virtual(played())


def test_a_difference_that_cannot_be_right_is_refused_and_changes_nothing():
    async def played():
        machine, _ = await two()
        digest, path = await machine.difference(Path("a"), (1,))
        content = machine.disk.files[path]
        files = machine.disk.files
        files[Path("poisoned")] = Extent.of(poisoned_seed(content.seed), 0, len(content))
        files[Path("long")] = Extent.of(content.seed, 0, len(content) + 1)
        files[Path("rubbish")] = b"rubbish"
        await machine.engine.check_difference(digest, path)
        wrong = [(Digest(bytes(32)), path), (digest, Path("missing")), (START.digest, START.path)]
        wrong += [
            (policy_digest(files[one]), one)
            for one in (Path("poisoned"), Path("long"), Path("rubbish"))
        ]
        before = await machine.engine.policy_digest()
        for claim in wrong:
            with pytest.raises(ValueError, match="difference"):
                await machine.engine.check_difference(*claim)
            with pytest.raises(ValueError, match="difference"):
                await machine.engine.apply_differences([(digest, path), claim])
        with pytest.raises(ValueError, match="no difference"):
            await machine.engine.apply_differences([])
        assert await machine.engine.policy_digest() == before != START.digest

    run_virtual(played())


def test_a_run_without_outer_steps_has_no_rounds():
    async def played():
        machine, path = Machine(run_manifest()), Path("a")
        await machine.engine.load_policy(START)
        for call in (
            machine.engine.begin_round(),
            machine.engine.write_difference(path),
            machine.engine.check_difference(Digest(bytes(32)), path),
            machine.engine.apply_differences([(Digest(bytes(32)), path)]),
        ):
            with pytest.raises(RuntimeError, match="no outer steps"):
                await call
        for number in range(5):
            await machine.step(number)
        await machine.engine.save_state(STATE)

    run_virtual(played())


@pytest.mark.parametrize(("encoding", "share"), [("int8", 4), ("float32", 1)])
def test_files_have_the_size_of_their_encoding_and_take_its_time(encoding, share):
    async def played():
        machine = Machine(manifest(encoding=encoding), Compute(weights_bytes_per_second=1000))
        await machine.engine.load_policy(START)
        began, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()
        digest, path = await machine.difference(Path("a"))
        seconds = WEIGHTS_BYTES / share / 1000
        assert loop.time() - began == pytest.approx(seconds)
        assert len(machine.disk.files[path]) == WEIGHTS_BYTES // share
        began = loop.time()
        await machine.engine.apply_differences([(digest, path)] * 3)
        assert loop.time() - began == pytest.approx(3 * seconds)

    run_virtual(played())


def test_a_difference_is_the_same_after_a_download():
    async def played():
        first, second = await two()
        digest, path = await first.difference(Path("a"), (1, 2))
        stored = await SimBlobs(first.disk, Session()).put_file(path, 4096, 1024, Purpose.WEIGHTS)
        assert stored.index.total_bytes == WEIGHTS_BYTES // 4
        second.disk.blobs.update(first.disk.blobs)
        files = SimPolicyFiles(second.disk, Session(), Path("weights"), START.path, Path("task"))
        await files.link(stored.digest, path)
        await second.engine.check_difference(digest, path)

    run_virtual(played())
