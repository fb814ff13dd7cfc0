"""``benchmarks/shardcast/threads.py`` on small files."""

from benchmarks.shardcast import threads


def test_each_kind_of_work_is_done_by_each_thread(tmp_path):
    rows = threads.run(tmp_path, threads=2, rows=50, runs=1)
    assert [row.work for row in rows] == ["encode", "decode", "sha256"]
    for row in rows:
        assert row.one_thread_gb_per_s > 0
        assert row.cores > 0
    for number in (0, 1):
        new, made = tmp_path / f"new{number}", tmp_path / f"made{number}"
        assert new.read_bytes() == made.read_bytes()
        assert (tmp_path / f"patch{number}").stat().st_size < new.stat().st_size / 20
