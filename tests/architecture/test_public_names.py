"""Public names match their snapshot."""

import ast
from difflib import unified_diff

from tests.architecture.public_names import SNAPSHOT, UPDATE, defined, snapshot


def test_public_names_and_options_are_those_of_the_snapshot():
    kept, found = SNAPSHOT.read_text(), snapshot()
    changes = unified_diff(kept.splitlines(), found.splitlines(), "kept", "found", lineterm="", n=1)
    assert kept == found, "\n".join(("", *changes, f"If that is meant: {UPDATE}"))


def test_what_is_public():
    tree = ast.parse("class B:\n    def c(self): ...\ndef _d(): ...\nasync def a(): ...\nE = 1")
    assert defined(tree) == ["B", "a"]
