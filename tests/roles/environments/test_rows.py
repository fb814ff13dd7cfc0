import pytest

from roles.environments import rows as module
from roles.environments.held_out import row_of
from roles.environments.rows import ParquetRows
from tests.worlds.text import write_rows

COLUMNS = ("prompt", "answer")
ROWS = [{"prompt": f"p{n}", "answer": str(n), "pass_rate": n / 10} for n in range(10)]


def test_rows_are_read_across_their_groups(tmp_path):
    rows = ParquetRows(write_rows(tmp_path / "rows", ROWS, row_group_size=3), COLUMNS)
    assert rows.count == 10
    for n in (9, 0, 2, 3, 5, 6, 8, 1):
        assert rows.row(n) == {"prompt": f"p{n}", "answer": str(n)}


def test_rows_outside_of_the_pass_rates_do_not_count(tmp_path):
    path = write_rows(tmp_path / "rows", [*ROWS, ROWS[3] | {"pass_rate": None}], row_group_size=4)
    rows = ParquetRows(path, COLUMNS, (0.2, 0.5))
    assert [rows.row(n)["prompt"] for n in range(rows.count)] == ["p2", "p3", "p4", "p5"]
    with pytest.raises(ValueError, match="no row"):
        ParquetRows(path, COLUMNS, (0.91, 1.0))


def test_what_is_no_data_set_is_told_in_one_line(tmp_path):
    wrong = tmp_path / "rows"
    with pytest.raises(ValueError, match="not a data set"):
        ParquetRows(wrong, COLUMNS)
    wrong.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a data set"):
        ParquetRows(wrong, COLUMNS)
    with pytest.raises(ValueError, match="no column answer"):
        ParquetRows(write_rows(wrong, [{"prompt": "p"}]), COLUMNS)
    with pytest.raises(ValueError, match="no column pass_rate"):
        ParquetRows(write_rows(wrong, [{"prompt": "p", "answer": "1"}]), COLUMNS, (0, 1))


def test_sizes_are_bounded(tmp_path, monkeypatch):
    long = {"prompt": "p" * 2000, "answer": "1"}
    path = write_rows(tmp_path / "rows", [ROWS[0], long, {"prompt": None, "answer": "1"}])
    monkeypatch.setattr(module, "ROW_BYTES_MAX", 1000)
    rows = ParquetRows(path, COLUMNS)
    assert rows.row(0)["prompt"] == "p0"
    with pytest.raises(ValueError, match="2,001 bytes of text, the limit is 1,000"):
        rows.row(1)
    with pytest.raises(ValueError, match="row 2: prompt is null"):
        rows.row(2)
    monkeypatch.setattr(module, "GROUP_BYTES_MAX", 1000)
    with pytest.raises(ValueError, match="row group"):
        ParquetRows(path, COLUMNS)


def test_seeds_are_spread_over_all_rows_and_by_task():
    drawn = [row_of("math/a", seed, 7) for seed in range(700)]
    assert all(60 < drawn.count(row) < 140 for row in range(7))
    assert [row_of("math/b", seed, 7) for seed in range(700)] != drawn
    assert row_of("math/a", 2**64 - 1, 1) == 0
    assert row_of("math/a", 1, 10**6) == row_of("math/a", 1, 10**6)
