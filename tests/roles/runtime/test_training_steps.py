from types import SimpleNamespace

import pytest

from roles.ports.storage import StorageFullError
from roles.runtime.training_steps import STATISTICS, STEPS_MAX, TABLE, TrainingStep, TrainingSteps
from tests.worlds.disks import MemoryStore

USED = {"sequences_offered": 64, "sequences_used": 48, "updates": 1}
WASTED = {"sequences_offered": 64, "sequences_used": 0, "updates": 0}


def step(version, **statistics):
    return TrainingStep(version, 100.0 + version, **USED | statistics)


def wasted(version, reward):
    return TrainingStep(version, 100.0 + version, reward, **WASTED)


def checkpoint(version, signer="me", made_by=None):
    message = SimpleNamespace(version=version, created_at=5_000, reward_mean=250_000, round=made_by)
    return SimpleNamespace(manifest=SimpleNamespace(message=message, signer=signer))


async def recorded(store, *steps):
    training = TrainingSteps()
    for one in steps:
        await training.record(one, store)
    return training


async def test_steps_are_there_after_a_restart():
    store = MemoryStore()
    steps = [step(9, kl_nats=0.25), step(10, gradient_norm=None)]
    await recorded(store, *steps)
    again = TrainingSteps()
    again.restore(store)
    assert again.newest == steps[-1]
    assert again.of([checkpoint(version) for version in (9, 10)], "me") == steps


async def test_a_step_of_later_software_is_read_and_a_damaged_one_is_left_out():
    store = MemoryStore()
    await recorded(store, step(1), step(2))
    table = store.tables[TABLE]
    newest, oldest = max(table), min(table)
    table[newest] = table[newest].replace(b'"version":2', b'"version":2,"colour":3')
    table[oldest] = b"{"
    again = TrainingSteps()
    again.restore(store)
    assert again.of([checkpoint(2)], "me") == [step(2)]
    assert again.of([checkpoint(1)], "me") == [TrainingStep(1, 5.0, 0.25)]


async def test_a_step_that_is_made_again_replaces_the_one_that_was_not_published():
    store = MemoryStore()
    training = await recorded(store, step(1), step(2, loss=1.0), step(2, loss=2.0))
    assert training.of([checkpoint(1), checkpoint(2)], "me") == [step(1), step(2, loss=2.0)]
    assert len(store.tables[TABLE]) == 2


async def test_only_so_many_steps_are_kept(monkeypatch):
    monkeypatch.setattr("roles.runtime.training_steps.STEPS_MAX", 3)
    store = MemoryStore()
    training = await recorded(store, *map(step, range(1, 6)))
    known = training.of([checkpoint(version) for version in range(1, 6)], "me")
    assert [one.sequences_used for one in known] == [None, None, 48, 48, 48]
    assert len(store.tables[TABLE]) == 3
    assert STEPS_MAX > 1000


async def test_a_full_disk_does_not_stop_the_trainer():
    async def full(changes):
        raise StorageFullError("no room")

    training = await recorded(SimpleNamespace(commit=full), step(1))
    assert training.newest == step(1)


async def test_of_versions_of_others_the_announced_reward_is_known():
    training = await recorded(MemoryStore(), step(1), step(2))
    chain = [checkpoint(0), checkpoint(1), checkpoint(2, "another"), checkpoint(3, "another")]
    assert training.of(chain, "me") == [
        step(1), TrainingStep(2, 5.0, 0.25), TrainingStep(3, 5.0, 0.25)
    ]  # fmt: skip


async def test_of_a_round_that_another_led_the_own_part_is_known():
    training = await recorded(MemoryStore(), step(1))
    chain = [checkpoint(number, "another", made_by=object()) for number in (0, 1, 2)]
    assert training.of(chain, "me") == [step(1), TrainingStep(2, 5.0, 0.25)]


@pytest.mark.parametrize(
    ("reward", "remedy"),
    [
        (0.0, "the problems are too hard for this model: found a run on easier ones"),
        (0.5, "raise sampling.temperature or sampling.group_size in a new run"),
        (1.0, "the task is solved: end the run, or found one on harder problems"),
    ],
)
def test_a_step_that_used_nothing_says_so_and_what_to_do(reward, remedy):
    assert wasted(12, reward).warning == (
        "step 12 used 0 of 64 sequences: the rewards in each group are equal, so the policy did "
        f"not change; {remedy}"
    )
    assert step(12).warning == ""


def test_a_step_whose_gradient_was_not_finite_says_so():
    told = step(12, updates=0, gradient_norm=None).warning
    assert told.startswith("step 12 made no update: its loss or gradient was not finite")


@pytest.mark.parametrize(
    ("whole", "engines", "cause"),
    [
        (0.2, 0.05, None),
        (0.2, None, None),
        (0.06, 0.06, "at 6% of the tokens, under equal weights"),
        (0.5, 0.06, "at 6% of the tokens, under equal weights"),
        (0.25, 0.013, "the rollouts are old (under equal weights 1.3% are)"),
        (0.25, None, "old rollouts or different engines"),
    ],
)
def test_a_mismatch_names_the_cause_that_the_statistics_tell(whole, engines, cause):
    told = step(7, mismatch_clip_fraction=whole, engine_mismatch_clip_fraction=engines).warning
    assert (cause is None) == (told == "")
    assert cause is None or (cause in told and told.startswith("step 7: "))


async def test_the_warning_counts_the_steps_and_ends_with_the_next_good_one():
    store = MemoryStore()
    training = await recorded(store, step(1), wasted(2, 0.0))
    assert training.warning == wasted(2, 0.0).warning
    for version in (3, 4):
        await training.record(wasted(version, 0.0), store)
    assert training.warning == f"{wasted(4, 0.0).warning} (3 steps in a row)"
    await training.record(step(5), store)
    assert training.warning == ""
    assert TrainingSteps().warning == ""


def test_every_statistic_is_described():
    assert all(text.endswith(".") for text in STATISTICS.values())
    fields = set(TrainingStep.__dataclass_fields__)
    assert fields - set(STATISTICS) == {"version", "ended_at"}
