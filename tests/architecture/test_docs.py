"""Documentation pages refer to existing files, folders and pages only."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PACKAGES = ("protocol", "roles", "node", "simulations")
FOLDERS = [*PACKAGES, "benchmarks", "configs", "docs", "tests"]

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def named_paths(text: str) -> set[str]:
    """Return the paths of the tree that a page names in backticks; a pattern stands for itself."""
    quoted = re.findall(r"`([\w./*-]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {name.partition("::")[0] for name in quoted if name.partition("/")[0] in FOLDERS}


@every_page
def test_the_paths_that_a_page_names_exist(page):
    missing = [path for path in named_paths(page.read_text()) if not list(ROOT.glob(path))]
    assert [path for path in missing if "/" in path] == []


@every_page
def test_the_links_of_a_page_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_map_names_every_folder():
    text = (ROOT / "docs/architecture.md").read_text()
    folders = [
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).iterdir()
        if path.is_dir() and any(path.glob("*.*")) and not path.name.startswith("_")
    ]
    assert [folder for folder in folders if f"`{folder}/`" not in text] == []
