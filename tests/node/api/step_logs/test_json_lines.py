import json
from contextlib import closing

import pytest

from node.api.step_logs.json_lines import JsonLines
from roles.runtime.training_steps import STATISTICS, decoded


@pytest.fixture
def path(tmp_path):
    return tmp_path / "training" / "steps.jsonl"


def write(path, steps):
    """Log missing ``steps`` as a node's start does; return the previous last one."""
    with closing(JsonLines(path)) as log:
        version = log.open()
        log.write([step for step in steps if step.version > version])
        return version


def versions(path):
    return [json.loads(line)["version"] for line in path.read_text().splitlines()]


def test_each_step_is_a_line_with_every_statistic(path, steps):
    assert write(path, steps) == 0
    lines = path.read_bytes().splitlines()
    assert [decoded(line) for line in lines] == steps
    assert all(set(json.loads(line)) == {"version", "ended_at", *STATISTICS} for line in lines)
    assert json.loads(lines[4])["gradient_norm"] is None


def test_a_restart_goes_on_where_it_ended(path, steps):
    assert write(path, steps[:2]) == 0
    assert write(path, steps) == 2
    assert versions(path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("left", [0, 1, 20, -1])
def test_a_line_that_a_crash_has_cut_is_written_again(path, steps, left):
    write(path, steps[:3])
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole[: -len(last)] + last[:left])
    assert write(path, steps) == 2
    assert [decoded(line) for line in path.read_bytes().splitlines()] == steps


def test_a_file_of_something_else_is_left_alone(path, steps):
    path.parent.mkdir()
    path.write_text("notes\n")
    with pytest.raises(ValueError, match=r"steps\.jsonl is not a training step; move the file"):
        write(path, steps)
    assert path.read_text() == "notes\n"


def test_a_long_file_is_read_from_its_end(path, steps):
    path.parent.mkdir()
    path.write_text("x" * 100_000 + "\n" + '{"version": 4}\n')
    assert write(path, steps) == 4
    assert path.stat().st_size > 100_000
