"""SQLite connections of a store, for tests of its transactions and its limits."""

import sqlite3

import pytest


@pytest.fixture
def connections(monkeypatch):
    """Record the SQLite connections that are opened: of a store, the writer and the reader."""
    opened, connect = [], sqlite3.connect

    def noted(*arguments, **options):
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return opened
