"""Sizes, purity and determinism of the modules, checked on the syntax tree."""

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "roles", "node", "simulations")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

FUNCTION_LINES_MAX = 70

CLOCKS_AND_DICE = (
    "time",
    "random",
    "secrets",
    "uuid",
    "os.urandom",
    "os.getrandom",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "numpy.random",
    "torch.rand",
    "torch.randn",
    "torch.randint",
    "torch.seed",
)
"""Names that read a clock or draw a number; ``time`` stands for its whole module."""

DRIVERS = (
    "node/cli/commands/calibrate.py",  # the date that a chat template may ask for
    "node/cli/commands/invite.py",  # expiry of an invite
    "node/cli/commands/progress.py",  # time of the last printed line
    "node/cli/commands/run.py",  # age of a final page
    "node/cli/commands/status.py",  # age of events
    "node/network/resources/dht_call_limiter.py",  # duration of calls
    "node/process/loop_lag.py",  # delay of the loop
    "node/process/runner.py",  # the seed of a daemon's random generators
    "node/local/datadir.py",  # the key
    "node/local/system.py",  # the clock
    "node/testnet/display.py",
    "node/founding/creation.py",  # start of the run
    "node/founding/found.py",
    "node/founding/trial.py",  # duration of work
    "node/cli/doctor/network.py",  # response time of a peer
    "node/testnet/poll.py",  # time of a node's response
    "node/testnet/swarm.py",
    "roles/engines/calibration/honest.py",  # deadline of a session
    "roles/engines/selftest.py",  # speed of a device
    "roles/environments/jailed/program.py",  # fixes what programs draw
    "simulations/cli/console.py",  # progress bar
    "simulations/study/sweep.py",  # duration of each simulation
)
"""Modules in which the real clock and entropy enter."""

NO_NAMES = ("utils", "util", "helpers", "helper", "common", "misc", "lib", "tools", "stuff")
"""Names that do not describe a module's content."""

TESTS = sorted((ROOT / "tests").rglob("*.py"))

PRIVATE_USES_MAX = 146
"""Uses of private names of the code under test, in all tests; the number may only fall."""

PUBLIC_NAMES = ("_replace", "_asdict", "_fields", "_exit")
"""Documented names with an underscore: those of ``namedtuple``, and ``os._exit``."""

FOREIGN = ("torch.", "transformers.")
"""Receivers of other packages."""

ARGUMENTS_MIN = {
    "time.strftime": 2,
    "time.gmtime": 1,
    "time.localtime": 1,
    "numpy.random.default_rng": 1,
    "numpy.random.seed": 1,
    "random.seed": 1,
}
"""Minimum of arguments with which these read no clock and draw no numbers."""

TYPES = ("numpy.random.Generator", "time.struct_time")


pytestmark = pytest.mark.xdist_group("tidy")  # one worker parses all modules, once


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PURE = [path for path in MODULES if relative(path).startswith("protocol/")]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def offences(
    check: Callable[[Path], object], modules: Sequence[Path] = MODULES
) -> dict[str, object]:
    """Return the non-empty results of ``check`` by module."""
    found = ((relative(path), check(path)) for path in modules)
    return {name: offence for name, offence in found if offence}


def test_there_is_something_to_check():
    assert len(MODULES) > 50


# Sizes


def test_a_module_opens_with_prose():
    assert offences(lambda path: len(ast.get_docstring(parsed(path)) or "") <= 10) == {}


def test_functions_are_short():
    assert offences(long_functions) == {}


def long_functions(path: Path) -> list[str]:
    return [
        f"{node.name}: {lines} lines"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def test_a_module_is_named_after_what_it_is_about():
    parts = (set(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES)
    assert not set().union(*parts) & set(NO_NAMES)


def test_every_package_is_typed():
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)


# The protocol is pure and ordered


def test_the_protocol_never_waits():
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert offences(lambda path: lines_of(kinds, parsed(path)), PURE) == {}


def lines_of(kinds: tuple[type[ast.AST], ...], tree: ast.Module) -> list[int]:
    return [node.lineno for node in ast.walk(tree) if isinstance(node, kinds)]


def test_the_protocol_iterates_over_no_set():
    assert offences(lambda path: set_iterations(parsed(path)), PURE) == {}


def set_iterations(tree: ast.Module) -> list[int]:
    """Return the lines that iterate over an evident set.

    The order of a set of bytes or strings differs between processes. Membership tests, sizes,
    comparisons and ``sorted`` are permitted.
    """
    ordered = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", ".join", ".extend"}
    ordered |= {".fromkeys"}
    iterated = []
    for scope in scopes(tree):
        sets = set_names(scope)
        for node in own_nodes(scope):
            if isinstance(node, ast.For | ast.comprehension):
                iterated.append((node.iter, sets))
            elif isinstance(node, ast.Starred):
                iterated.append((node.value, sets))
            elif isinstance(node, ast.Call) and called(node) in ordered:
                iterated += [(argument, sets) for argument in node.args]
    return sorted({node.lineno for node, sets in iterated if is_set(node, sets)})


def scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, except those of nested functions."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from own_nodes(node)


def set_names(scope: ast.AST) -> set[str]:
    """Return the names to which a scope assigns a set."""
    names: set[str] = set()
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign) and is_set(node.value, names):
            names |= {name_of(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            annotation = ast.unparse(node.annotation)
            if annotation.startswith(("set[", "frozenset[", "set", "frozenset", "AbstractSet")):
                names.add(name_of(node.target))
    return names


def is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            kept = {"union", "intersection", "difference", "symmetric_difference", "copy"}
            return attr in kept and is_set(value, names)
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return is_set(node.left, names) or is_set(node.right, names)
        case ast.Name() | ast.Attribute():
            return name_of(node) in names
    return False


def called(node: ast.Call) -> str:
    """Return the name of a function, or of a method with a dot before it."""
    is_method = isinstance(node.func, ast.Attribute)
    return f".{node.func.attr}" if is_method else name_of(node.func)


def name_of(node: ast.expr) -> str:
    """Return a dotted name as written; empty for other expressions."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{name_of(value)}.{attr}"
    return ""


# Clocks and random numbers


def test_clocks_and_dice_are_at_the_edge():
    used = offences(lambda path: clocks_and_dice(parsed(path)))
    assert {name: lines for name, lines in used.items() if name not in DRIVERS} == {}
    assert used.keys() == set(DRIVERS), "a driver that reads no clock any more"


def clocks_and_dice(tree: ast.Module) -> list[str]:
    """Return the uses of clocks and random generators, by any imported name."""
    modules, members = imports(tree)
    given = {
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and len(node.args) >= ARGUMENTS_MIN.get(resolved(node.func, modules | members), 1000)
    }
    found = []
    for node in ast.walk(tree):
        known = members if isinstance(node, ast.Name) else modules | members
        if isinstance(node, ast.Attribute | ast.Name) and node not in given:
            name = resolved(node, known)
            banned = any(name == one or name.startswith(f"{one}.") for one in CLOCKS_AND_DICE)
            if banned and name not in (*TYPES, "numpy.random"):
                found.append(f"line {node.lineno}: {name}")
    return sorted(set(found))


def imports(tree: ast.Module) -> tuple[dict[str, str], dict[str, str]]:
    """Return local names and their targets: modules, and members of modules."""
    modules, members = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                modules[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                members[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return modules, members


def resolved(node: ast.expr, known: dict[str, str]) -> str:
    first, dot, rest = name_of(node).partition(".")
    return known.get(first, "") + dot + rest


# Tests use public names


def test_tests_use_few_private_names():
    uses = offences(lambda path: private_uses(parsed(path)), TESTS)
    counts = {name: len(found) for name, found in uses.items()}
    assert sum(counts.values()) <= PRIVATE_USES_MAX, counts


def private_uses(tree: ast.Module) -> list[str]:
    """Return the uses of private names that the classes of the module do not define.

    They are attributes of anything but ``self`` and ``cls``, imported names, and names that
    ``setattr``, ``getattr`` and ``delattr`` receive as strings.
    """
    own, found = defined_names(tree), []
    for node in ast.walk(tree):
        names = []
        match node:
            case ast.Attribute(value=value, attr=attr):
                foreign = f"{name_of(value)}.".startswith(FOREIGN)
                names = [] if name_of(value) in {"self", "cls"} or foreign else [attr]
            case ast.ImportFrom():
                names = [alias.name for alias in node.names]
            case ast.Call() if called(node).removeprefix(".") in {"setattr", "getattr", "delattr"}:
                texts = (one.value for one in node.args[:2] if isinstance(one, ast.Constant))
                names = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
        private = [name for name in names if name.startswith("_") and not name.startswith("__")]
        found += [f"line {node.lineno}: {name}" for name in private if name not in own]
    return found


def defined_names(tree: ast.Module) -> set[str]:
    """Return the methods and attributes of the module's classes, and documented names."""
    names = set(PUBLIC_NAMES)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(name_of(node.target).removeprefix("self."))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if name_of(node.value) == "self" else set()
    return names


# The checks can fail


@pytest.mark.parametrize(
    "code",
    [
        "x._y",
        "x._y = 1",
        "f(x)._y.z",
        "from a import _b",
        "monkeypatch.setattr(x, '_y', 1)",
        "monkeypatch.setattr('a.b._y', 1)",
        "getattr(x, '_y')",
        "class T:\n    def f(self): self.x._y",
    ],
)
def test_a_private_name_in_a_test_is_found(code):
    assert len(private_uses(ast.parse(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "x.y",
        "x.__class__",
        "x._replace(y=1)",
        "torch.ops.aten._to_copy",
        "class T:\n    def _y(self): self._z = T()._y",
        "class T:\n    def f(self, other): self._y = other._y",
    ],
)
def test_own_and_documented_names_are_allowed(code):
    assert private_uses(ast.parse(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "a = [x for x in frozenset(y)]",
        "s = {x for x in y}\nfor z in s: pass",
        "def f(y):\n    s: set[int] = y\n    return list(s)",
        "def f(y):\n    s = set(y)\n    return [*s]",
        "a = tuple(set(y) - {1})",
        "b''.join({b'a', b'b'})",
        "def f(self):\n    self.s = set()\n    return [x for x in self.s | y]",
        "dict.fromkeys(set(y).union(z))",
    ],
)
def test_an_iterated_set_is_found(code):
    assert set_iterations(ast.parse(code)) != []


@pytest.mark.parametrize(
    "code",
    [
        "for x in sorted({1, 2}): pass",
        "s = set(y)\na = z in s and len(s) == 3",
        "for x in {1: 2}: pass",
        "any(x in {1, 2} for x in y)",
    ],
)
def test_what_sets_are_for_is_allowed(code):
    assert set_iterations(ast.parse(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.time()",
        "from time import monotonic as m\nm()",
        "import random\nx = random.random",
        "import os\nos.urandom(4)",
        "from os import urandom\nurandom(4)",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import numpy as np\nnp.random.rand()",
        "import time\ntime.strftime('%H')",
        "import uuid\nuuid.uuid4()",
        "import numpy as np\nnp.random.default_rng()",
        "from numpy.random import default_rng\ndefault_rng()",
    ],
)
def test_a_clock_or_a_die_is_found(code):
    assert clocks_and_dice(ast.parse(code)) != []


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.strftime('%H', time.gmtime(now))",
        "import numpy as np\ndef f(g: np.random.Generator): np.random.default_rng(7)",
        "from protocol.core.rng import Rng\nRng(b'seed')",
    ],
)
def test_what_is_given_a_time_or_a_seed_is_allowed(code):
    assert clocks_and_dice(ast.parse(code)) == []
