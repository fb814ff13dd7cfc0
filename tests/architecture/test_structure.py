"""Rooms, arrows and layers of the packages, sizes of modules, and one class per name.

A room is a module or a package directly inside a package; an arrow is an import from one room to
another. The limits are what the tree has: a change that needs more of them has to say why.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "roles", "node", "simulations")

LIMITS = {
    "protocol": (11, 31),
    "roles": (7, 11),
    "roles/engines": (13, 36),
    "node": (15, 54),
    "node/network": (8, 16),
    "simulations": (11, 25),
}
"""Rooms and arrows of a package, at most."""

LINES_MAX = 500
LINES_MIN = 40

SMALL = (
    "node/cli/commands/",  # one module for each command: it is loaded when it is called
    "node/api/step_logs/base.py",  # an interface
    "node/testnet/preload.py",  # imported by name in a fork server
    "roles/environments/jailed/",  # run by name in a jail
    "roles/ports/",  # interfaces
)
"""Modules that may be smaller: entry points and interfaces."""

CRUMBS_MAX = 9
"""Modules below ``LINES_MIN`` lines that are neither; the number may only fall."""


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return the dotted names that a module imports, functions' own imports included."""
    found = []
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            found += [f"{statement.module}.{alias.name}" for alias in statement.names]
        elif isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names]
    return tuple(found)


def modules(root: Path, package: str = "") -> Iterator[Path]:
    """Yield the modules of a package, or of all packages."""
    for name in [package] if package else PACKAGES:
        yield from sorted((root / name).rglob("*.py"))


def sheet(root: Path, package: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the rooms of a package and the arrows between them."""
    prefix = package.replace("/", ".") + "."
    rooms, arrows = set(), set()
    for path in modules(root, package):
        parts = path.relative_to(root / package).with_suffix("").parts
        if parts == ("__init__",):
            continue
        rooms.add(parts[0])
        for name in imports_of(path):
            if name.startswith(prefix):
                arrows.add((parts[0], name.removeprefix(prefix).partition(".")[0]))
    return rooms, {(room, other) for room, other in arrows if room != other and other in rooms}


def circle(arrows: set[tuple[str, str]]) -> list[str]:
    """Return the rooms that no order by layers can place; nothing without a circle."""
    left = set(arrows)
    while True:
        sources = {room for room, _ in left}
        fewer = {(room, other) for room, other in left if other in sources}
        if fewer == left:
            return sorted(sources)
        left = fewer


def beyond(root: Path, package: str) -> list[str]:
    """Return how a package exceeds its limits."""
    rooms, arrows = sheet(root, package)
    rooms_max, arrows_max = LIMITS[package]
    found = [f"{len(rooms)} rooms, at most {rooms_max}"] if len(rooms) > rooms_max else []
    found += [f"{len(arrows)} arrows, at most {arrows_max}"] if len(arrows) > arrows_max else []
    return found + [f"a circle through {room}" for room in circle(arrows)]


def crumbs(root: Path) -> list[str]:
    """Return the small modules that are no entry points or interfaces."""
    names = {path.relative_to(root).as_posix(): path for path in modules(root)}
    return [
        name
        for name, path in names.items()
        if len(path.read_text().splitlines()) < LINES_MIN
        and path.name != "__init__.py"
        and not name.startswith(SMALL)
    ]


def long_modules(root: Path) -> list[str]:
    """Return the modules above the limit."""
    return [
        path.relative_to(root).as_posix()
        for path in modules(root)
        if len(path.read_text().splitlines()) > LINES_MAX
    ]


def reused_names(root: Path) -> dict[str, list[str]]:
    """Return the names that several classes have, and their modules."""
    homes = defaultdict(list)
    for path in modules(root):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.ClassDef):
                homes[statement.name].append(path.relative_to(root).as_posix())
    return {name: found for name, found in homes.items() if len(found) > 1}


@pytest.mark.parametrize("package", LIMITS)
def test_a_package_keeps_its_rooms_and_arrows(package):
    assert beyond(ROOT, package) == []


def test_no_module_is_too_long_and_few_are_crumbs():
    assert long_modules(ROOT) == []
    assert len(crumbs(ROOT)) <= CRUMBS_MAX, crumbs(ROOT)


def test_a_class_name_stands_once():
    assert reused_names(ROOT) == {}


# The checks can fail


@pytest.fixture
def tree(tmp_path):
    """Make a tree of two layers that keeps every rule."""
    texts = {
        "protocol/core/types.py": "class Digest: pass\n",
        "protocol/ledger/ledger.py": "from protocol.core.types import Digest\n",
    }
    for name, text in texts.items():
        plant(tmp_path, name, text)
    for package in ("roles", "node", "simulations"):
        (tmp_path / package).mkdir()
    return tmp_path


def plant(root: Path, name: str, text: str, lines: int = LINES_MIN) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "#\n" * (lines - text.count("\n")))


def test_a_tree_that_keeps_the_rules_passes(tree):
    assert beyond(tree, "protocol") == long_modules(tree) == crumbs(tree) == []
    assert reused_names(tree) == {}


def test_a_planted_circle_is_found(tree):
    plant(tree, "protocol/core/codec.py", "from protocol.ledger import ledger\n")
    assert beyond(tree, "protocol") == ["a circle through core", "a circle through ledger"]


def test_a_planted_room_and_its_arrows_are_found(tree):
    for number in range(LIMITS["protocol"][0]):
        plant(tree, f"protocol/room{number}/noun.py", "from protocol.core import types\n")
    assert beyond(tree, "protocol") == ["13 rooms, at most 11"]
    for number in range(LIMITS["protocol"][1]):
        text = f"from protocol.room{number % 10} import noun\n"
        plant(tree, f"protocol/room10/other{number}.py", text)
        plant(tree, f"protocol/ledger/other{number}.py", text)
    assert beyond(tree, "protocol")[1:] == ["32 arrows, at most 31"]


def test_planted_sizes_and_names_are_found(tree):
    plant(tree, "node/crumb.py", "", lines=LINES_MIN - 1)
    plant(tree, "node/cli/commands/small.py", "", lines=3)
    plant(tree, "node/god.py", "class Digest: pass\n", lines=LINES_MAX + 1)
    assert crumbs(tree) == ["node/crumb.py"]
    assert long_modules(tree) == ["node/god.py"]
    assert reused_names(tree) == {"Digest": ["protocol/core/types.py", "node/god.py"]}
