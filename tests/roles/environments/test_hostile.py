"""A sample of the hostile programs of ``benchmarks/environments/hostile.py``."""

import asyncio
import math

import pytest

from benchmarks.environments import hostile
from tests.worlds.text import needs_jail

pytestmark = needs_jail

HARMLESS = {"right", "right, long", "writes"}
"""Programs that answer 7, whatever else they do."""

UNFIT = {
    *hostile.SLOW_PROGRAMS,
    *hostile.SLOW_ANSWERS,
    "chance",
    "threads",
    "deletes",
    "deep recursion",
}


@pytest.mark.slow
async def test_five_scorers_agree_about_hostile_completions_and_nobody_is_hurt():
    with hostile.outside() as (around, touched):
        every = hostile.completions(2 * len(hostile.PROGRAMS) + 2 * len(hostile.ANSWERS), around)
        once = {(item.task, item.kind): item for item in every if item.kind not in UNFIT}
        kept = [*once.values()][::3] + [one for one in once.values() if one.kind in HARMLESS]
        report = await hostile.attack(kept, 5)
    assert touched == []
    assert report.disagreements == []
    for kind, tally in report.scores.items():
        right = kind.partition(", ")[2] in HARMLESS
        assert set(tally) <= {"1" if right else "0", "none"}, kind
    assert report.scores["code, right"]["1"] >= 5


async def test_what_is_touched_outside_is_noticed():
    with hostile.outside() as (around, touched):
        (around.directory / "canary").write_text("silent")
    assert len(touched) == 1 and touched[0].startswith("files:")


@pytest.mark.parametrize(("scores", "count"), [((0.0, 1.0), 1), ((1.0, 1.0), 0)])
async def test_scorers_that_differ_are_noticed(monkeypatch, scores, count):
    class Scorer:
        made = iter(scores)

        def __init__(self):
            self.own = next(self.made)

        async def open(self):
            pass

        async def score(self, items):
            await asyncio.sleep(0.05)
            return [self.own for _ in items]

        async def close(self):
            pass

    monkeypatch.setattr(hostile, "Scorer", Scorer)
    monkeypatch.setattr(hostile, "DELAY_SECONDS_MAX", math.inf)  # a busy machine is no failure
    report = await hostile.attack([hostile.Hostile("math", "sum", "")], 2)
    assert len(report.disagreements) == count
    assert report.harmless is (count == 0)
