"""Event files as read by TensorBoard itself."""

import pytest

from node.api.step_logs.tensorboard import TensorBoard

pytest.importorskip("tensorboard", reason="needs tensorboard: pip install '.[tensorboard]'")


def write(directory, steps):
    log = TensorBoard(directory)
    version = log.open()
    log.write([step for step in steps if step.version > version])
    log.close()
    return version


def read(directory):
    """Return the points of each scalar, as TensorBoard draws them."""
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415 - an extra
        EventAccumulator,
    )

    found = EventAccumulator(str(directory)).Reload()
    return {
        name: [(event.step, event.wall_time, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def expected(steps):
    names = {name for step in steps for name in step.statistics}
    return {
        f"training/{name}": [
            (step.version, step.ended_at, pytest.approx(step.statistics[name]))
            for step in steps
            if name in step.statistics
        ]
        for name in names
    }


def test_each_statistic_is_a_scalar_by_version(tmp_path, steps):
    assert write(tmp_path / "tensorboard", steps) == 0
    assert read(tmp_path / "tensorboard") == expected(steps)


def test_a_restart_goes_on_where_it_ended(tmp_path, steps):
    assert write(tmp_path, steps[:4]) == 0
    assert write(tmp_path, steps) == 4
    assert write(tmp_path, steps) == 6
    assert read(tmp_path) == expected(steps)


def test_an_event_that_a_crash_has_cut_is_written_again(tmp_path, steps):
    write(tmp_path, steps[:4])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    assert write(tmp_path, steps) == 3
    assert read(tmp_path) == expected(steps)
