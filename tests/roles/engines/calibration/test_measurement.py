"""Calibration file: it survives interruptions, and belongs to one computation."""

from dataclasses import replace

import pytest

from protocol.core.types import Digest
from protocol.run.toml import load_recipe
from roles.engines.calibration.honest import TimeBudget
from roles.engines.calibration.measurement import MeasuredEngine, MeasurementFile
from roles.engines.calibration.proposal import propose
from tests.roles.engines.calibration.recordings import LAYOUT, drawn
from tests.worlds.messages import RECIPE

SUBJECT = MeasuredEngine.of(load_recipe(RECIPE.read_text()), Digest(bytes(32)))
PARTS = [[drawn(f"pair {pair}", seed=10 * part + pair) for pair in range(2)] for part in range(3)]


def opened(path, subject=SUBJECT, on="this machine"):
    return MeasurementFile(path, subject, on)


def filled(path):
    file = opened(path)
    for part in PARTS:
        file.add(part)
    return file


def test_what_was_written_is_read_to_the_bit(tmp_path):
    written, read = filled(tmp_path / "file"), opened(tmp_path / "file", on="another machine")
    assert read.parts == 3
    assert read.tokens == written.tokens == 6 * 64 * 256
    assert read.measured_on == "this machine"
    assert [one.name for one in read.recordings] == ["pair 0", "pair 1"]
    rules = [propose(one.recordings, LAYOUT, "", 1.0) for one in (written, read)]
    assert rules[0] == rules[1]


@pytest.mark.parametrize("cut", [1, 100, 100_000])
def test_a_line_that_was_cut_short_is_dropped_and_the_next_part_takes_its_place(tmp_path, cut):
    path = tmp_path / "file"
    filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = opened(path)
    assert again.parts == 2
    again.add(PARTS[2])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policy": "ab" * 32}, "was measured with policy 0000"),
        ({"dtype": "bf16"}, "was measured with dtype fp32, the run has bf16"),
        ({"precision": "bf16"}, "precision"),
        ({"temperature": 0.5}, "temperature"),
        ({"task": "math/rows"}, "task"),
    ],
)
def test_a_file_of_another_computation_is_refused(tmp_path, change, said):
    filled(tmp_path / "file")
    with pytest.raises(ValueError, match=said):
        opened(tmp_path / "file", replace(SUBJECT, **change))


@pytest.mark.parametrize(
    "text",
    [
        "nothing\n",
        "{}\n",
        "[]\n",
        '{"format": "another/1"}\n',
        '{"format": "prime-node-calibration/1", "on": "", "subject": {}}\n',
        "[" * 100_000 + "\n",
    ],
)
def test_what_is_no_calibration_is_refused(tmp_path, text):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match="is no calibration"):
        opened(tmp_path / "file")


def test_a_calibration_goes_on_until_it_has_enough_or_its_time_is_over():
    budget = TimeBudget(tokens_enough=100, tokens_min=10, seconds_max=60)
    assert budget.spent(100, 0)
    assert budget.spent(10, 60)
    assert not budget.spent(99, 59)
    assert not budget.spent(9, 6000)
