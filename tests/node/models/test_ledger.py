"""Ledger in a data directory, as ``prime-node ledger`` shows, proves and exports it."""

import json
import sqlite3

import pytest

from node.cli.main import main
from node.local.errors import ExitCode
from node.storage.state import LEDGER_TABLE
from protocol.core.crypto import Identity
from tests.worlds.held_runs import held_run

NOBODY = Identity(b"\x07" * 32).peer_id


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Node of a run with three certified rollouts, and two final versions that learned from two."""
    return held_run(tmp_path_factory.mktemp("run"), final=2)


@pytest.fixture
def ledger(held):
    """Return a function that runs ``prime-node ledger``."""

    def run(*words, data_dir=held.root):
        return main(["ledger", *map(str, words), "--data-dir", str(data_dir)])

    return run


@pytest.fixture
def verify():
    """Return a function that runs ``prime-node ledger verify``."""
    return lambda *words: main(["ledger", "verify", *map(str, words)])


def error_of(capsys):
    line = capsys.readouterr().err.strip()
    assert line.startswith("prime-node: error: ")
    assert "\n" not in line
    return line.removeprefix("prime-node: error: ")


def test_an_account_has_all_work_of_a_key(held, ledger, capsys):
    worker = held.world.workers[0].peer_id
    assert ledger("balance", worker, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    counts = {name: shown[name] for name in ("rollouts", "tokens", "rejected", "checks", "steps")}
    assert counts == {"rollouts": 2, "tokens": 20, "rejected": 0, "checks": 0, "steps": 0}
    assert (shown["peer"], shown["learned"], shown["slashed"]) == (worker, 2, -1)
    assert sum(amount for _, amount in shown["locked"]) + shown["credit"] == 20 * 10
    assert ledger("balance", worker) == 0
    assert worker in capsys.readouterr().out


def test_the_keys_with_most_credit_come_first(held, ledger, capsys):
    assert ledger("top", "--json", "--count", "3") == 0
    shown = json.loads(capsys.readouterr().out)
    trainer, worker = held.world.trainers[0].peer_id, held.world.workers[0].peer_id
    assert {one["peer"] for one in shown["accounts"][:2]} == {trainer, worker}
    total = len(held.run.replica.intake.accounts.all())
    assert (len(shown["accounts"]), shown["total"]) == (3, total)
    assert ledger("top", "--count", "3") == 0
    assert f"and {total - 3} more" in capsys.readouterr().out


def test_a_page_shows_the_rollouts_and_versions_that_it_decides(held, ledger, capsys):
    page = held.world.book.page(5).digest.hex()
    for name in ("5", page[:8], page):
        assert ledger("show", name, "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["page"], shown["epoch"]) == (page, 5)
        assert [one["tokens"] for one in shown["rollouts"]] == [10, 10, 7]
        assert all(len(one["checkers"]) == 3 for one in shown["rollouts"])
    assert ledger("show", "8", "--json") == 0
    assert [one["version"] for one in json.loads(capsys.readouterr().out)["versions"]] == [1, 2]
    assert ledger("show", "8") == 0
    assert "version 2 of " in capsys.readouterr().out


def test_a_proof_is_accepted_without_the_node(held, ledger, verify, tmp_path, capsys):
    worker, proof = held.world.workers[1].peer_id, tmp_path / "proof"
    assert ledger("prove", worker, "--out", proof) == 0
    assert verify(proof, "--json", "--run", held.world.run_id.hex()) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["account"]["peer"], shown["account"]["tokens"]) == (worker, 7)
    assert verify(proof, "--run", "00" * 32) == 1


def test_an_export_is_accepted_and_a_changed_one_is_not(held, ledger, verify, tmp_path, capsys):
    export = tmp_path / "run.jsonl"
    assert ledger("export", "--out", export) == 0
    assert verify(export, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    accounts = held.run.replica.intake.accounts
    assert shown["root"] == accounts.root.hex()
    assert shown["totals"] == accounts.totals._asdict()
    lines = export.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if json.loads(line).get("work"))
    lines[place] = json.dumps({**json.loads(lines[place]), "work": ""})
    export.write_text("\n".join(lines) + "\n")
    assert verify(export) == 1
    assert capsys.readouterr().err == "refused: page of epoch 5: its work does not match the page\n"


def test_a_table_has_a_row_for_each_rollout_and_version(held, ledger, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = tmp_path / "run.parquet"
    assert ledger("export", "--out", table, "--format", "parquet") == 0
    rows = parquet.read_table(table).to_pylist()
    assert [one["kind"] for one in rows] == ["rollout"] * 3 + ["version"] * 2
    assert sum(one["tokens"] for one in rows[:3]) == 27
    assert rows[3]["key"] == held.world.trainers[0].peer_id
    assert [one["partners"] for one in rows] == [None] * 3 + [[]] * 2
    assert parquet.read_schema(table).metadata[b"run_id"].decode() == held.world.run_id.hex()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("balance", NOBODY), ExitCode.RETRY, f"names {NOBODY}"),
        (("prove", NOBODY), ExitCode.RETRY, f"states an account of {NOBODY} yet"),
        (("balance", "12D3"), ExitCode.USAGE, "'12D3' is no peer id"),
        (("show", "700"), ExitCode.CONFIG, "no final page 700"),
        (("show", "ffffffff"), ExitCode.CONFIG, "no final page ffffffff"),
        (("export", "--out", "."), ExitCode.USAGE, ". exists; give a new file"),
        ((), ExitCode.USAGE, "no key here: name the KEY"),
    ],
)
def test_refusals(ledger, capsys, words, code, said):
    assert ledger(*words) == code
    assert said in error_of(capsys)


def test_a_directory_without_a_ledger(ledger, tmp_path, capsys):
    assert ledger("top", data_dir=tmp_path) == ExitCode.CONFIG
    assert "belongs to no run" in error_of(capsys)


def test_a_node_that_has_not_counted_all_pages_exports_nothing(tmp_path, ledger, capsys):
    held = held_run(tmp_path / "node", final=2)
    with sqlite3.connect(held.root / "state.sqlite") as store:
        store.execute("DELETE FROM entries WHERE name = ?", (LEDGER_TABLE,))
    assert ledger("export", "--out", tmp_path / "e", data_dir=held.root) == ExitCode.RETRY
    assert "has not counted all final pages yet" in error_of(capsys)
    assert not (tmp_path / "e").exists()
