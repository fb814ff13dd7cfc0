import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from node.storage.state import SqliteStore
from roles.ports.storage import Delete, Put, StorageFullError, Store


async def test_what_is_committed_is_there_and_survives_reopening(tmp_path: Path) -> None:
    opened = SqliteStore(tmp_path / "state.sqlite")
    store: Store = opened
    await store.commit([Put("a", b"2", b"two"), Put("a", b"1", b"one"), Put("b", b"1", b"other")])
    await store.commit([Put("a", b"2", b"zwei"), Delete("b", b"1"), Delete("b", b"absent")])
    assert store.get("a", b"2") == b"zwei"
    assert store.get("b", b"1") is None
    assert list(store.scan("a")) == [(b"1", b"one"), (b"2", b"zwei")]
    opened.close()
    opened.close()
    with pytest.raises(RuntimeError):
        await opened.commit([])
    again = SqliteStore(tmp_path / "state.sqlite")
    assert list(again.scan("a")) == [(b"1", b"one"), (b"2", b"zwei")]
    again.close()


async def test_scans_page_in_key_order_and_never_hide_a_later_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    keys = [number.to_bytes(2, "big") for number in range(1000)]
    await store.commit([Put("t", key, b"") for key in keys])
    scan = store.scan("t")
    next(scan)
    await store.commit([Put("u", b"k", b"v")])
    assert store.get("u", b"k") == b"v"
    assert [key for key, _ in scan] == keys[1:]
    store.close()


async def test_concurrent_commits_share_transactions(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    statements: list[str] = []
    store = SqliteStore(tmp_path / "state.sqlite")
    connections[0].set_trace_callback(statements.append)
    await asyncio.gather(
        *(store.commit([Put("t", n.to_bytes(2, "big"), b"x")]) for n in range(500))
    )
    assert len(list(store.scan("t"))) == 500
    assert 0 < statements.count("COMMIT") < 100
    store.close()


async def test_a_commit_that_fails_takes_no_neighbour_with_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    bad = [Put("t", b"bad", b"x"), Put("t", b"worse", None)]  # type: ignore[arg-type]
    commits = [store.commit([Put("t", b"%d" % n, b"x")]) for n in range(20)]
    results = await asyncio.gather(
        *commits[:10], store.commit(bad), *commits[10:], return_exceptions=True
    )
    failures = [result for result in results if result is not None]
    assert [type(failure) for failure in failures] == [sqlite3.IntegrityError]
    assert len(list(store.scan("t"))) == 20
    store.close()


async def test_a_full_database_says_so_and_keeps_what_it_had(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    await store.commit([Put("t", b"kept", b"x")])
    writer = connections[0]
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(StorageFullError):
        await store.commit([Put("t", b"large", bytes(100_000))])
    assert [key for key, _ in store.scan("t")] == [b"kept"]
    writer.execute("PRAGMA max_page_count = 100000")
    await store.commit([Put("t", b"large", bytes(100_000))])
    store.close()


async def test_a_cancelled_commit_harms_nobody(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")
    task = asyncio.create_task(store.commit([Put("t", b"1", b"x")]))
    await asyncio.sleep(0)
    task.cancel()
    await store.commit([Put("t", b"2", b"x")])
    assert len(list(store.scan("t"))) == 2
    store.close()


def test_a_database_of_another_schema_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "state.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ValueError, match="schema 99"):
        SqliteStore(tmp_path / "state.sqlite")


def test_a_loop_that_has_gone_does_not_stop_the_writer(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.sqlite")

    async def leave() -> None:
        asyncio.get_running_loop().create_task(store.commit([Put("t", b"1", b"x")]))
        await asyncio.sleep(0)

    asyncio.run(leave())
    asyncio.run(store.commit([Put("t", b"2", b"x")]))
    assert store.get("t", b"2") == b"x"
    store.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from node.storage.state import SqliteStore
from roles.ports.storage import Put

async def work(store, lane):
    for n in range(10**6):
        key = b"%d/%d" % (lane, n)
        await store.commit([Put("t", key, key), Put("twin", key, key)])
        print(key.decode(), flush=True)

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await asyncio.gather(*(work(store, lane) for lane in range(8)))

asyncio.run(main())
"""


def test_kill_9_loses_nothing_whose_commit_returned(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdout is not None
        announced = [process.stdout.readline().strip() for _ in range(300)]
        os.kill(process.pid, signal.SIGKILL)
        announced += [line.strip() for line in process.stdout if line.endswith(b"\n")]
    store = SqliteStore(path)
    stored = dict(store.scan("t"))
    assert len(announced) >= 300
    assert all(stored[key] == key for key in announced)
    assert stored == dict(store.scan("twin")), "all changes of a commit or none"
    store.close()


def damage(path: Path, where: int) -> None:
    with path.open("r+b") as file:
        file.seek(where)
        file.write(b"\xff" * 64)


@pytest.mark.parametrize("where", [0, 4096 + 8, 3 * 4096])
async def test_a_damaged_database_is_told_when_it_is_opened(tmp_path: Path, where: int) -> None:
    """A damaged page in the middle would else stop a node hours later, at its first read."""
    path = tmp_path / "state.sqlite"
    store = SqliteStore(path)
    await store.commit([Put("t", bytes([n]), bytes(3000)) for n in range(8)])
    store.close()
    damage(path, where)
    with pytest.raises(ValueError, match="damaged: "):
        SqliteStore(path)


def test_a_database_that_cannot_be_opened_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").mkdir()
    with pytest.raises(OSError, match="directory"):
        SqliteStore(tmp_path / "state.sqlite")


async def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.touch(0o644)
    path.chmod(0o644)
    store = SqliteStore(path)
    await store.commit([Put("t", b"k", b"v")])
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3, "with -wal and -shm"
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    store.close()
