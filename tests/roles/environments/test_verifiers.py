import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.run.recipe import EnvironmentSection
from roles.environments import verifiers
from roles.environments.jailed.installed import package_digest, package_files
from roles.environments.verifiers import Verifiers, pinned
from roles.ports.engines import Answer, Unscorable
from simulations.runtime.loop import SimBackground
from tests.worlds.packages import SUMS, install, needs_verifiers
from tests.worlds.text import byte_tokenizer, needs_jail, opened

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"

FILES = {"sums_env/__init__.py": SUMS, "sums_env/rows.json": "[1, 2]"}


# Digest


def installed(monkeypatch, path, files=None, **options):
    install(monkeypatch, path, "sums_env", FILES if files is None else files, **options)
    return package_digest("sums-env")


def test_a_digest_follows_from_the_files_alone(monkeypatch, tmp_path):
    with monkeypatch.context() as here:
        first = installed(here, tmp_path / "first")
    path = tmp_path / "second"
    other = dict(reversed(FILES.items())) | {"sums_env/__pycache__/rows.pyc": "compiled"}
    assert installed(monkeypatch, path, other, metadata="Summary: another build\n") == first
    record = path / "sums_env-1.0.dist-info" / "RECORD"
    added = "sums_env-1.0.dist-info/direct_url.json,,\n../../../bin/sums,,\n"
    record.write_text(record.read_text() + added)
    assert package_digest("sums-env") == first
    assert list(package_files("sums-env")) == ["sums_env/__init__.py", "sums_env/rows.json"]


@pytest.mark.parametrize(
    "files",
    [
        FILES | {"sums_env/rows.json": "[1, 3]"},
        FILES | {"sums_env/more.py": ""},
        {"sums_env/__init__.py": SUMS},
        {"sums_env/__init__.py": "[1, 2]", "sums_env/rows.json": SUMS},
        {"sums_env/__init__.py": SUMS + "[1", "sums_env/rows.json": ", 2]"},
        {"sums_env/__init__.py": SUMS, "sums_env/rows.js": "on[1, 2]"},
    ],
)
def test_other_files_have_another_digest(monkeypatch, tmp_path, files):
    with monkeypatch.context() as here:
        first = installed(here, tmp_path / "first")
    assert installed(monkeypatch, tmp_path / "second", files) != first


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ("../../../share/rows.json,,\n", "outside of its directory: ../../../share/rows.json"),
        ("sums_env/gone.py,,\n", "cannot read sums_env/gone.py: No such file"),
    ],
)
def test_files_that_cannot_be_the_same_elsewhere_are_told(monkeypatch, tmp_path, record, told):
    installed(monkeypatch, tmp_path / "site")
    path = tmp_path / "site" / "sums_env-1.0.dist-info" / "RECORD"
    path.write_text(path.read_text() + record)
    with pytest.raises(ValueError, match=told):
        package_digest("sums-env")


def test_an_installation_that_lists_no_files_of_its_own_has_no_digest(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="lists no files of its own"):
        installed(monkeypatch, tmp_path / "site", {})


# Parts named by a run


def section(**options):
    pins = {"math-verify": "0.9.0", "verifiers": "0.4.0"}
    given = {"version": "1.0", "digest": "ab" * 32, "requires": pins, **options}
    known = {key: value for key, value in given.items() if value is not None}
    return EnvironmentSection(name="verifiers/sums-env", options=known)


def task_of(named, tokenizer=None):
    return Verifiers(named, lambda: tokenizer, SimBackground())


NOT_0_4 = {"math-verify": "0.9.0", "verifiers": "0.4.99"}
NO_MATH = {"verifiers": "0.4.0"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"version": "2.0"}, "verifiers/sums-env needs sums-env 2.0, installed: 1.0"),
        ({"version": "1.0.0"}, "installed: 1.0"),
        ({"digest": None}, "names no digest"),
        ({"version": None}, "names no version"),
        ({"requires": None}, "names no requires"),
        ({"requires": NO_MATH}, "names no version of math-verify"),
        ({"requires": {**NO_MATH, "math-verify": 9}}, "holds versions, which are text"),
        ({"size": 3}, "must not hold 'size' as 3"),
        ({"arguments": "x"}, "must not hold 'arguments' as 'x'"),
    ],
)
def test_a_node_refuses_what_is_installed_otherwise(monkeypatch, tmp_path, options, told):
    found = installed(monkeypatch, tmp_path / "site")
    with pytest.raises(ValueError, match=told) as raised:
        task_of(section(**{"digest": found, **options}))
    assert "\n" not in str(raised.value)


def test_a_node_tells_the_digest_of_what_is_installed(monkeypatch, tmp_path):
    found = installed(monkeypatch, tmp_path / "site")
    with pytest.raises(ValueError, match=f"of digest {'ab' * 32}, installed: {found}$"):
        task_of(section())


def test_a_node_without_the_package_or_with_another_library_is_told(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"needs sums-env 1\.0, installed: none"):
        task_of(section())
    found = installed(monkeypatch, tmp_path / "site")
    with pytest.raises(
        ValueError, match=r"needs (verifiers 0\.4\.99|math-verify 0\.9\.0), installed: "
    ):
        task_of(section(digest=found, requires=NOT_0_4))


def test_who_founds_a_run_needs_the_package(monkeypatch):
    with pytest.raises(ValueError, match="the package sums-env is not installed"):
        pinned(section(version=None, digest=None, requires=None))


@needs_verifiers
def test_what_a_run_leaves_out_is_filled_in(monkeypatch, tmp_path):
    needs = "Requires-Dist: blake3>=1.0\nRequires-Dist: absent[x]; extra == 'more'\n"
    found = installed(monkeypatch, tmp_path / "site", metadata=needs)
    bare = EnvironmentSection(name="verifiers/sums-env", options={"arguments": {"terms": 3}})
    whole = pinned(bare)
    assert whole.options["version"] == "1.0" and whole.options["digest"] == found
    assert whole.options["arguments"] == {"terms": 3}
    assert sorted(whole.options["requires"]) == ["blake3", "math-verify", "verifiers"]
    assert pinned(whole) == whole
    for wrong in ({"version": "2.0"}, {"digest": "00" * 32}, {"requires": {"blake3": "0.1"}}):
        with pytest.raises(ValueError, match=r"needs .*installed: "):
            pinned(EnvironmentSection(name="verifiers/sums-env", options=wrong))


# Scores


SHORT = replace(verifiers.LIMITS, cpu_soft_seconds=1.0, cpu_hard_seconds=2)


@pytest.fixture
def tokenizer(tmp_path):
    return byte_tokenizer(tmp_path / "model")


def founded(monkeypatch, tmp_path, name, source, **arguments):
    install(monkeypatch, tmp_path / "site", name.replace("-", "_"), {f"{name}.py": source})
    bare = EnvironmentSection(name=f"verifiers/{name}", options={"arguments": arguments})
    return pinned(bare)


@needs_verifiers
@needs_jail
async def test_problems_and_scores_are_those_of_the_package(monkeypatch, tmp_path, tokenizer):
    named = founded(monkeypatch, tmp_path, "sums", SUMS, terms=3)
    task, other = task_of(named, tokenizer), task_of(named, tokenizer)
    await opened(task)
    await opened(other)
    seeds = [seed for seed in range(30) if await task.question(seed) == "4 + 4 + 4 = ?"]
    assert 0 < len(seeds) < 15
    seed = seeds[0]
    prompt = await task.prompt(seed, 50)
    assert prompt == await other.prompt(seed, 50)
    assert tokenizer.decode(prompt) == (
        "Say the number alone.4 + 4 + 4 = ?\n\nThink for 50 tokens before giving a response."
    )
    said = {"12": 1.0, "<think>7</think> 12 ": 1.0, "13": 0.25, "": 0.25, "x" * 10**6: 0.0}
    answers = [Answer(seed, tokenizer.encode_chat(text)[1:-1]) for text in said]
    assert await task.score_batch(answers) == [*said.values()]
    assert await other.score_batch(answers[::-1]) == [*said.values()][::-1]
    await task.close()
    await other.close()


HOSTILE = """
import os, random, socket, sys
from pathlib import Path
import verifiers.v1 as vf

print("noise", flush=True)
os.write(1, b"noise")


class Obeys(vf.Task):
    @vf.reward
    async def obey(self, trace) -> float:
        match trace.last_reply:
            case "loop":
                while True:
                    pass
            case "exit":
                os._exit(0)
            case "leave":
                sys.exit(0)
            case "raise":
                raise KeyError
            case "print":
                print("x" * 10**5, flush=True)
                os.write(1, b"x" * 10**5)
                return 1.0
            case "read":
                return float(os.read(0, 1) == b"")
            case "memory":
                return float(len(bytearray(10**10)))
            case "write":
                there = Path("/tmp/there")
                known = there.exists()
                there.mkdir(exist_ok=True)
                (there / "file").write_text("x")
                return 0.5 + known / 4
            case "edit":
                Path(__file__).write_text("")
            case "network":
                socket.create_connection(("192.0.2.1", 9), 1)
            case "home":
                return float(len(os.listdir(sys.prefix + "/../.git")))
            case "random":
                return random.random()
            case number:
                return float(number)


class Commands(vf.Taskset[Obeys, vf.TasksetConfig]):
    def load(self):
        return [Obeys(vf.TaskData(prompt="Command."))]


__all__ = ["Commands"]
"""


@needs_verifiers
@needs_jail
async def test_hostile_answers_do_no_harm_and_cost_nobody_else_a_score(
    monkeypatch, tmp_path, tokenizer
):
    monkeypatch.setattr(verifiers, "LIMITS", SHORT)
    task = await opened(task_of(founded(monkeypatch, tmp_path, "commands", HOSTILE), tokenizer))

    async def scores(*said):
        return await task.grade_all([7] * len(said), said)

    assert await scores("1", "loop", "0.25", "exit") == [1.0, 0.0, 0.25, 0.0]
    assert await scores("leave", "1", "raise", "memory") == [0.0, 1.0, 0.0, 0.0]
    assert await scores("edit", "network", "home", "read") == [0.0, 0.0, 0.0, 1.0]
    assert await scores("7", "-7", "nan", "inf", "-inf") == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert await scores("print", "1") == [1.0, 1.0]
    assert [await scores("write"), await scores("write")] == [[0.5], [0.5]]
    (first,), (again, between, last) = await scores("random"), await scores("random", "1", "random")
    assert first == again == last != between
    assert 0 < first < 1
    await task.close()


@needs_verifiers
@needs_jail
async def test_between_the_limits_there_is_no_score(monkeypatch, tmp_path, tokenizer):
    monkeypatch.setattr(verifiers, "LIMITS", replace(SHORT, memory_soft_bytes=64 << 20))
    named = founded(monkeypatch, tmp_path, "sums", SUMS)
    task = task_of(named, tokenizer)
    with pytest.raises(ValueError, match=r"does not report its problems: .*MiB of memory"):
        await opened(task)
    task._count = 5
    (given,) = await task.grade_all([0], ["2"])
    assert isinstance(given, Unscorable) and "MiB of memory" in given.reason
    await task.close()


# Missing parts


TASKSET = """
import verifiers.v1 as vf

class T(vf.Task):
    {task}

class S(vf.Taskset[T, vf.TasksetConfig]):
    {taskset}
    def load(self):
        return [T(vf.TaskData({data}), self.config.task)] * {count}

class Tools(vf.Toolset):
    pass

{more}
__all__ = ["S", {names}]
"""

REWARD = "@vf.reward\n    async def one(self, trace) -> float: return 1.0"
PROMPT = "prompt='What?'"
TOOLS = "@classmethod\n    def toolsets(cls, config): return [Tools(vf.ToolsetConfig())]"
IMAGE = "prompt=[vf.UserMessage(content=[vf.ImageUrlContentPart(image_url={'url': 'x'})])]"
ENV = "class E(vf.SingleAgentEnv): pass"
SPOKEN = "prompt=[vf.UserMessage(content='a'), vf.AssistantMessage(content='b')]"

WHOLE = {"task": REWARD, "taskset": "", "data": PROMPT, "count": 1, "more": "", "names": ""}

REFUSED = {
    "a_tools": ({"taskset": TOOLS}, "tools"),
    "b_tools": ({"task": f"{REWARD}\n    {TOOLS}"}, "tools"),
    "container": ({"task": f"{REWARD}\n    NEEDS_CONTAINER = True"}, "a container"),
    "image": ({"data": f"{PROMPT}, image='python'"}, "needs an image"),
    "setup": ({"task": f"{REWARD}\n    async def setup(self, trace, runtime): 1"}, "a runtime"),
    "runs": (
        {"task": "@vf.reward\n    async def one(self, trace, runtime) -> float: return 1.0"},
        "a runtime",
    ),
    "stops": (
        {"task": f"{REWARD}\n    @vf.stop\n    async def end(self, t: vf.Trace): return True"},
        "stops or intercepts",
    ),
    "nothing": ({"task": "pass"}, "needs rewards"),
    "several": ({"more": ENV, "names": "'E'"}, "an environment of its own"),
    "silent": ({"data": ""}, "does not end with a user message"),
    "spoken": ({"data": SPOKEN}, "does not end with a user message"),
    "picture": ({"data": IMAGE}, "that are not text"),
    "long": ({"data": "prompt='x' * 60_000"}, "more than 49152 bytes"),
    "empty": ({"count": 0}, "no tasks"),
    "exits": ({"more": "raise SystemExit('bye')"}, "SystemExit: bye"),
    "asks": ({"more": "import urllib.request as r; r.urlopen('http://localhost:1')"}, "URLError"),
    "good": ({}, None),
}

LOADS = """
import json, sys
from roles.environments.jailed import verifiers
verifiers.PACKAGES = sys.argv[1]
for package, digest in json.loads(sys.argv[2]).items():
    settings = {"package": package, "digest": digest, "arguments": {}}
    print(json.dumps(verifiers.checker(settings)({})))
"""


@needs_verifiers
def test_packages_that_need_more_than_one_answer_are_refused_by_name(monkeypatch, tmp_path):
    (example,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    sources = {name: TASKSET.format(**WHOLE | parts) for name, (parts, _) in REFUSED.items()}
    site, digests = tmp_path / "site", {}
    more = {"documented": example, "borrowed": "from good import S\n__all__ = ['S']\n"}
    for name, source in (sources | more).items():
        install(monkeypatch, site, name, {f"{name}.py": source})
        digests[name] = package_digest(name)
    command = [sys.executable, "-c", LOADS, str(site), json.dumps(digests)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    said = dict(zip(digests, map(json.loads, ran.stdout.splitlines()), strict=True))
    assert said["documented"] == {"count": 999}
    assert "its taskset among its installed files" in said["borrowed"]["refused"]
    for name, (_, told) in REFUSED.items():
        if told is None:
            assert said[name] == {"count": 1}
        else:
            assert told in said[name].get("refused", "accepted"), (name, said[name])


@needs_verifiers
@needs_jail
async def test_a_node_does_not_open_a_package_that_is_refused(monkeypatch, tmp_path, tokenizer):
    source = TASKSET.format(**WHOLE | {"taskset": TOOLS})
    task = task_of(founded(monkeypatch, tmp_path, "tooled", source), tokenizer)
    with pytest.raises(ValueError, match=r"verifiers/tooled: .*needs tools") as raised:
        await opened(task)
    assert "\n" not in str(raised.value)
    await task.close()
