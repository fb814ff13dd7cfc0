"""Durable small state: the ``Store`` port on SQLite.

One writer thread groups the waiting commits into one transaction, hence one fsync. A busy node pays
the disk's latency per batch, not per commit. Readers use a connection of their own. In WAL mode
each read sees every finished transaction, so every returned commit.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from protocol.messages import ENVELOPE_BYTES_MAX
from roles.ports.storage import Delete, Put, StorageFullError, Store

SCHEMA_VERSION = 1

MESSAGES_TABLE = "messages"
"""Table of the message log: an envelope in each row."""

PAGES_TABLE = "pages"
"""Table of the message log: encoded notarised pages, the newest last."""

LEDGER_TABLE = "ledger"
"""Final pages that are counted, with their work, by page digest."""

ACCOUNTS_TABLE = "accounts"
"""Accounts of the ledger: where its pages begin, the newest that were stored, the newest page."""

BATCH_COMMITS_MAX = 256
"""Commits per transaction; bounds the wait of the first one. A guess."""

PAGE_ENTRIES = 256
"""Rows per page of a scan; a guess."""

_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


@dataclass(frozen=True, slots=True)
class _Commit:
    changes: tuple[Put | Delete, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]

    def resolve(self, error: Exception | None) -> None:
        """Resolve the caller's future from the writer thread."""
        try:
            self.loop.call_soon_threadsafe(self._resolve, error)
        except RuntimeError:  # the loop is closed: no caller waits
            return

    def _resolve(self, error: Exception | None) -> None:
        if self.done.done():  # cancelled; the commit stands
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class SqliteStore(Store):
    """Tables of bytes to bytes in a database file that only its owner can read.

    Raises ``ValueError`` when it is damaged or foreign, ``OSError`` when it cannot be opened. Only
    the thread that made the store may read.
    """

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)  # SQLite gives its journals the mode of the database
        try:
            self._writer = _connect(path)
            _prepare(self._writer)
            self._reader = _connect(path)
        except sqlite3.OperationalError as error:
            raise OSError(str(error)) from None
        except sqlite3.DatabaseError as error:
            raise ValueError(f"damaged: {error}") from None
        self._queue: queue.SimpleQueue[_Commit | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="store", daemon=True)
        self._thread.start()
        self._closed = False

    @override
    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        if self._closed:
            raise RuntimeError("the store is closed")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Commit(tuple(changes), loop, done))
        await done

    @override
    def get(self, table: str, key: bytes) -> bytes | None:
        query = "SELECT value FROM entries WHERE name = ? AND key = ?"
        row = self._reader.execute(query, (table, key)).fetchone()
        return None if row is None else bytes(row[0])

    @override
    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        # Pages: an open cursor would pin its snapshot, and ``get`` would read the past.
        query = "SELECT key, value FROM entries WHERE name = ? AND key {} ? ORDER BY key LIMIT ?"
        page = self._reader.execute(query.format(">="), (table, b"", PAGE_ENTRIES)).fetchall()
        while page:
            yield from page
            after = (table, page[-1][0], PAGE_ENTRIES)
            page = self._reader.execute(query.format(">"), after).fetchall()

    def close(self) -> None:
        """Write pending commits and close; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def _write_all(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            while len(batch) < BATCH_COMMITS_MAX and not self._queue.empty():
                commit = self._queue.get()
                if commit is None:
                    self._queue.put(None)  # read again after this batch
                    break
                batch.append(commit)
            self._write_batch(batch)

    def _write_batch(self, batch: Sequence[_Commit]) -> None:
        error = _transact(self._writer, [change for commit in batch for change in commit.changes])
        if error is not None and len(batch) > 1:  # one bad commit must not fail the others
            for commit in batch:
                commit.resolve(_transact(self._writer, commit.changes))
            return
        for commit in batch:
            commit.resolve(error)


def stored_messages(path: Path) -> list[bytes]:
    """Return the envelopes in the store at ``path`` without writing; its node may be running.

    Raises ``ValueError`` if the file is no store.
    """
    return [one for one in _values(path, MESSAGES_TABLE) if len(one) <= ENVELOPE_BYTES_MAX]


def stored_chains(path: Path) -> list[bytes]:
    """Return the encoded notarised pages in such a store, in the order to restore them."""
    return _values(path, PAGES_TABLE)


def stored_value(path: Path, table: str, key: bytes) -> bytes | None:
    """Return a value in such a store, or None."""
    query = "SELECT value FROM entries WHERE name = ? AND key = ?"
    return next(iter(_select(path, query, (table, key))), None)


def _values(path: Path, table: str) -> list[bytes]:
    return _select(path, "SELECT value FROM entries WHERE name = ? ORDER BY key", (table,))


def _select(path: Path, query: str, values: tuple[object, ...]) -> list[bytes]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise ValueError(str(error)) from None
    return [value for (value,) in rows]


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise ValueError(f"of schema {version}, and this prime-node knows {SCHEMA_VERSION}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS entries (name TEXT NOT NULL, key BLOB NOT NULL, "
        "value BLOB NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID"
    )
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _transact(connection: sqlite3.Connection, changes: Sequence[Put | Delete]) -> Exception | None:
    """Apply ``changes`` in one transaction; return the error if none was applied."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for change in changes:
            _apply(connection.execute, change)
        connection.execute("COMMIT")
    except (sqlite3.Error, ValueError, OverflowError) as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        full = getattr(error, "sqlite_errorcode", None) in _FULL
        return StorageFullError(str(error)) if full else error
    return None


def _apply(execute: Callable[[str, tuple[object, ...]], object], change: Put | Delete) -> None:
    if isinstance(change, Put):
        row = (change.table, change.key, change.value)
        execute("INSERT OR REPLACE INTO entries (name, key, value) VALUES (?, ?, ?)", row)
    else:
        execute("DELETE FROM entries WHERE name = ? AND key = ?", (change.table, change.key))
