"""The tree uses the field's words: private words of its past stay out.

``WORDS`` are matched in every tracked text; names of classes are matched in code.
"""

import ast
import re
import subprocess

import pytest

from tests.architecture.test_tidy import ROOT, parsed

pytestmark = pytest.mark.xdist_group("tidy")

WORDS = (
    r"\w*strangers?\w*",
    r"\w*newcomers?\w*",
    r"\w*heeded\w*",
    r"\w*whoever\w*",
    r"\w*fosters?\w*",
    r"\w*doorkeeper\w*",
    r"\w*chronicle\w*",
    r"\w*happenings?\w*",
    r"\w*uptakes?\w*",
    r"\w*spared\w*",
    r"\w*knocks?\w*",
    r"(?:has|have|of|its|with|without)[ _]standing",
    r"proven (?:peers?|keys?|nodes?|workers?|authors?|members?)",
    r"(?:comes?|came) to nothing",
    r"goe?s? on in turns",
)
"""The field says untrusted, reputation, failover parent, policy swap and so on."""

CLASSES = {
    *("Incarnation", "Openings", "Places", "Turns", "Reading", "Leg", "Way", "Tally", "Fading"),
    *("Remembered", "Waiting", "Asked", "Making", "Examination", "Conversation"),
}

EXEMPT = {
    "CHANGELOG.md": "names of earlier releases",
    "node/api/metrics.py": "old names of metrics, for one release",
    "tests/architecture/test_words.py": "the list itself",
}

PATTERN = re.compile(r"(?<![\w])(?:" + "|".join(WORDS) + r")(?!\w)", re.IGNORECASE)


def words_in(text: str) -> list[str]:
    """Return the words of a text that have to go."""
    return PATTERN.findall(text)


def tracked() -> list[str]:
    """Return the tracked text files of the tree."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if not name.endswith((".png", ".svg"))]


@pytest.mark.parametrize("text", ["a Stranger", "has_standing", "late_newcomer_bytes", "Whoever"])
def test_a_private_word_is_found(text):
    assert words_in(text)


@pytest.mark.parametrize("text", ["outstanding", "understanding", "a proven fault", "strange"])
def test_a_word_of_the_field_is_not(text):
    assert not words_in(text)


def test_no_text_has_a_private_word():
    found = {}
    for name in tracked():
        path = ROOT / name
        if name in EXEMPT or not path.is_file():
            continue
        try:
            words = words_in(path.read_text())
        except UnicodeDecodeError:
            continue
        if words:
            found[name] = sorted(set(words))
    assert not found, "words for which the field has another one"


def test_no_class_has_a_private_name():
    named = {
        f"{name}:{node.lineno}"
        for name in tracked()
        if name.endswith(".py") and (ROOT / name).is_file()
        for node in ast.walk(parsed(ROOT / name))
        if isinstance(node, ast.ClassDef) and node.name.lstrip("_") in CLASSES
    }
    assert not named, "names of classes for which the field has another one"
