"""Mutant lists match the sources, and the mutation runner reports correct results."""

from pathlib import Path

import pytest

from tests.mutants.run import ROOT, Mutant, UnfitError, read_lists, run

MUTANTS = read_lists()


def test_each_entry_fits_the_sources():
    stale = []
    for mutant in MUTANTS:
        try:
            mutant.applied(ROOT)
        except UnfitError as error:
            stale.append(str(error))
    assert stale == []


def test_each_entry_names_the_tests_that_notice_it_or_why_none_can():
    unnamed = [
        mutant.id
        for mutant in MUTANTS
        if not mutant.what
        or bool(mutant.tests) == bool(mutant.explained)
        or not all(map(is_there, mutant.tests))
    ]
    assert unnamed == []


def is_there(test):
    path, _, name = test.partition("::")
    function = name.rpartition("::")[2].partition("[")[0]
    return f"def {function}" in (ROOT / path).read_text() if name else (ROOT / path).exists()


def test_no_two_entries_have_one_id(tmp_path):
    entry = '[[mutant]]\nid = "X1"\nfile = "a.py"\nwhat = "b"\nold = "1"\nnew = "2"\n'
    for area in ("one", "other"):
        (tmp_path / f"{area}.toml").write_text(entry)
    with pytest.raises(UnfitError, match="called X1"):
        read_lists(tmp_path)


def small_tree(root: Path) -> None:
    """Write a package of one function and a test of half of it."""
    (root / "protocol").mkdir()
    (root / "protocol/__init__.py").write_text("")
    (root / "protocol/clamp.py").write_text("def clamp(x):\n    return max(0, min(x, 10))\n")
    (root / "test_clamp.py").write_text(
        "from protocol.clamp import clamp\n\ndef test_it():\n    assert clamp(11) == 10\n"
    )
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')


def wrong(old: str, new: str, name: str = "X1") -> Mutant:
    return Mutant("small", name, "protocol/clamp.py", "", old, new, ("test_clamp.py",))


def test_what_no_test_notices_is_named_and_the_tree_stays_as_it_is(tmp_path, capsys, monkeypatch):
    small_tree(tmp_path)
    monkeypatch.setattr("tests.mutants.run.HUNG_SECONDS_MIN", 3.0)
    monkeypatch.setattr("tests.mutants.run.HUNG_FACTOR", 1.0)
    before = (tmp_path / "protocol/clamp.py").read_text()
    hung = wrong("return", "while True: pass\n    return", "X1")
    unnoticed, noticed = wrong("0,", "5,", "X2"), wrong("10", "12", "X3")
    assert run([hung, unnoticed, noticed], tmp_path) == ["X2"]
    assert (tmp_path / "protocol/clamp.py").read_text() == before
    words = [line.split()[2] for line in capsys.readouterr().out.splitlines() if "/3 " in line]
    assert words == ["hung", "UNNOTICED", "noticed"]


@pytest.mark.parametrize(
    ("spoilt", "fault"),
    [
        ("assert 0", "broken without a mutation"),
        ("import sys\nsys.path.insert(0, '{elsewhere}')", "do not import the copy"),
    ],
)
def test_tests_that_fail_by_themselves_or_import_another_tree_are_an_error(tmp_path, spoilt, fault):
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    for folder in (elsewhere, root):
        folder.mkdir()
        small_tree(folder)
    path = root / "test_clamp.py"
    path.write_text(spoilt.format(elsewhere=elsewhere) + "\n" + path.read_text())
    with pytest.raises(UnfitError, match=fault):
        run([wrong("10", "12")], root, jobs=1)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("return", "pass", "not once"),
        ("clamp", "x", "not once"),
        ("min(x, 10)", "min(x,10)", "same"),
    ],
)
def test_a_stale_entry_is_an_error(tmp_path, old, new, fault):
    small_tree(tmp_path)
    (tmp_path / "protocol/clamp.py").write_text("def clamp(x):\n    y = clamp\n    min(x, 10)\n")
    with pytest.raises(UnfitError, match=fault):
        wrong(old, new).applied(tmp_path)
