import asyncio
from xml.etree import ElementTree as ET

import pytest

from node.cli.main import main
from protocol.rollout.statistics import STATISTICS
from protocol.run.toml import load_recipe
from roles.engines.calibration.calibrate import bench_of, calibrate, prompts_of, with_lies
from roles.engines.calibration.honest import ATTENTIONS, BATCHES, TimeBudget
from roles.engines.calibration.picture import draw
from tests.roles.engines.huggingface import write_directory
from tests.worlds.messages import RECIPE

LIES = 14

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("calibration")]  # one worker records, once


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_directory(tmp_path_factory.mktemp("calibration") / "tiny")


@pytest.fixture(scope="module")
def found(directory, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    bench = bench_of(load_recipe(RECIPE.read_text()), directory, folder, "cpu", 0, 24)
    said, shown = [], []

    async def measured():
        honest = await calibrate(
            bench,
            prompts_of_task,
            folder / "calibration.jsonl",
            TimeBudget(tokens_enough=10_000, tokens_min=0),
            2.0,
            lambda *progress: shown.append(progress),
        )
        return await with_lies(honest, bench, prompts_of_task, said.append)

    result = asyncio.run(measured())
    assert len(said) == LIES
    assert [done for done, _, _ in shown] == sorted(done for done, _, _ in shown)
    assert shown[-1][0] >= shown[-1][1] == 10_000
    return result


async def prompts_of_task(lot, count):
    recipe = load_recipe(RECIPE.read_text())
    return prompts_of(recipe, recipe.model, count, lot)


def test_honest_pairs_pass_and_every_lie_is_caught_in_float32(found):
    assert len(found.pairs) == len(BATCHES) * 2 * len(ATTENTIONS)
    assert found.rules.measured_tokens >= 10_000
    assert "margin 2" in found.rules.measured_on
    assert all(max(item.rejected) == 0 for item in found.honest)
    names = [item.name.partition(": ")[2] for item in found.caught]
    assert len(set(names)) == LIES
    for item in found.caught:
        assert item.tokens_until(0.99) is not None, item.name
        assert item.tokens_until(0.99) <= 128, item.name


def test_the_picture_has_a_panel_for_each_statistic_and_a_row_for_each_recording(found):
    root = ET.fromstring(draw(found))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in STATISTICS:
        assert name.replace("_", " ") in texts
    for recording in (*found.pairs, *found.lies):
        assert texts.count(recording.name) == len(STATISTICS)
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 230 <= float(circle.get("cx")) <= 980


def test_a_shift_is_what_it_says(found):
    shifted = next(item for item in found.lies if item.name.endswith("-0.05"))
    for claimed, own in zip(shifted.claimed, shifted.recomputed, strict=True):
        for one, other in zip(claimed, own.logprobs, strict=True):
            assert one - other == pytest.approx(-0.05, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["calibrate", "/nowhere", "--recipe", str(RECIPE)], 78, "no such directory"),
        (["calibrate", "{model}", "--recipe", "/nowhere.toml"], 78, "No such file"),
        (["calibrate", "{model}", "--recipe", "{wrong}"], 78, "unknown key 'nonsense'"),
    ],
)
def test_mistakes_are_one_line(directory, tmp_path, capsys, arguments, code, said):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("nonsense = 1\n" + RECIPE.read_text())
    filled = [one.format(model=directory, wrong=wrong) for one in arguments]
    assert main(filled) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
