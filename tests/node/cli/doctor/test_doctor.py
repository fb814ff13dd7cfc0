import asyncio
import json
import socket
from typing import NamedTuple

import pytest

from node.api.status import NodeStatus
from node.cli import api_client
from node.cli.commands.doctor import _look_at_daemon
from node.cli.doctor import FindingLevel, engine, machine
from node.cli.doctor.engine import check_engine
from node.cli.doctor.machine import check_clock, check_devices, check_disk, check_ranks
from node.cli.doctor.network import check_p2pd, check_peers, check_reachable
from node.cli.doctor.task import check_jail
from node.cli.main import main
from node.founding.found import found as found_run
from node.founding.found import manifest_toml
from node.founding.needs import needs_of
from node.local.datadir import DataDir, load_or_create_identity, open_data_dir
from node.local.hardware import Gpu
from protocol.core.crypto import Identity
from protocol.core.types import Role
from protocol.run.toml import load_recipe
from tests.worlds.messages import RECIPE, run_manifest
from tests.worlds.text import needs_jail

PEER = Identity(b"\x05" * 32).peer_id
NEEDS = needs_of(run_manifest(), 10**9)
SMALL = needs_of(run_manifest(), 10**6)
GB = 10**9


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Memory(NamedTuple):
    available: int


def levels(findings):
    return [finding.level for finding in findings]


@pytest.fixture
def cards(monkeypatch):
    made = []
    monkeypatch.setattr(machine, "gpus", lambda: iter(made))
    return made


def test_a_disk_is_compared_with_what_the_run_keeps(tmp_path, monkeypatch):
    root = tmp_path / "not" / "there" / "yet"
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(0, 0, 150 * GB))
    assert check_disk(root, (Role.INFERENCE,), None).level is FindingLevel.OK
    assert NEEDS.disk_bytes < 150 * GB
    assert check_disk(root, (Role.INFERENCE,), NEEDS).level is FindingLevel.OK
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(0, 0, NEEDS.disk_bytes))
    assert check_disk(root, (Role.TRAINER,), NEEDS).level is FindingLevel.FAILURE
    assert not root.exists()


def test_memory_is_that_of_the_device_which_computes(cards, monkeypatch):
    roles = (Role.RELAY, Role.INFERENCE, Role.VALIDATOR)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: Memory(2 * GB))
    assert levels(check_devices("cpu", roles, SMALL)) == [
        FindingLevel.OK,
        FindingLevel.OK,
        FindingLevel.OK,
    ]
    assert levels(check_devices("cpu", roles, NEEDS)) == [
        FindingLevel.WARNING,
        FindingLevel.FAILURE,
        FindingLevel.FAILURE,
    ]
    cards += [Gpu("small", 8 * GB, 4 * GB, "1"), Gpu("large", 80 * GB, 70 * GB, "1")]
    first = list(check_devices("auto", roles, NEEDS))
    assert levels(first) == [
        FindingLevel.OK,
        FindingLevel.OK,
        FindingLevel.FAILURE,
        FindingLevel.FAILURE,
    ]
    second = list(check_devices("cuda:1", roles, NEEDS))
    assert levels(second) == [FindingLevel.OK] * 4
    assert "large" in second[1].found
    assert levels(check_devices("cuda:2", roles, NEEDS))[-1] is FindingLevel.FAILURE


def test_ranks_share_the_memory_of_their_devices(cards, monkeypatch):
    cards += [Gpu("one", 80 * GB, NEEDS.trainer_bytes // 3, "1") for _ in range(4)]
    assert levels(check_ranks(("cuda:0", "cuda:1"), NEEDS)) == [
        FindingLevel.OK,
        FindingLevel.FAILURE,
    ]
    found = list(check_ranks(("cuda:0", "cuda:1", "cuda:2", "cuda:3"), NEEDS))
    assert levels(found) == [FindingLevel.OK] * 2
    assert "4 processes train on cuda:0, cuda:1, cuda:2, cuda:3" in found[0].found
    (missing,) = check_ranks(("cuda:3", "cuda:4"), NEEDS)
    assert (missing.level, "GPU 4 missing" in missing.found) == (FindingLevel.FAILURE, True)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: Memory(2 * NEEDS.trainer_bytes))
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 2)
    assert levels(check_ranks(("cpu",) * 2, NEEDS)) == [FindingLevel.OK] * 2
    (crowded,) = check_ranks(("cpu",) * 3, None)
    assert (crowded.level, "--trainer-ranks" in crowded.advice) == (FindingLevel.WARNING, True)


def test_a_trainer_of_rounds_needs_memory_of_its_host(cards, monkeypatch):
    run = run_manifest(trainers=2, grpo={"outer": {"trainers": 2}, "rollouts_ahead": 4})
    needs = needs_of(run, 10**6)
    assert needs.host_bytes > 0
    enough = needs.trainer_bytes + needs.host_bytes
    for free, level in ((enough, FindingLevel.OK), (enough - 1, FindingLevel.FAILURE)):
        monkeypatch.setattr(machine.psutil, "virtual_memory", lambda free=free: Memory(free))
        assert levels(check_devices("cpu", (Role.TRAINER,), needs))[-1] is level
        assert levels(check_ranks(("cpu",), needs))[-1] is level
    cards += [Gpu("one", 80 * GB, 70 * GB, "1")]
    for free, level in ((needs.host_bytes, FindingLevel.OK), (1, FindingLevel.FAILURE)):
        monkeypatch.setattr(machine.psutil, "virtual_memory", lambda free=free: Memory(free))
        device, host = list(check_devices("auto", (Role.TRAINER,), needs))[-2:]
        assert (device.level, host.level) == (FindingLevel.OK, level)
        assert "outer steps" in host.found


def test_a_gpu_that_is_not_there_is_a_failure(cards):
    (finding,) = check_devices("cuda", (Role.INFERENCE,), None)
    assert finding.level is FindingLevel.FAILURE
    assert "--device cpu" in finding.advice


@pytest.mark.parametrize(
    ("status", "level"),
    [(0, FindingLevel.OK), (0x2000, FindingLevel.OK), (0x2040, FindingLevel.WARNING)],
)
def test_the_kernels_word_about_its_clock_is_read(monkeypatch, status, level):
    class Libc:
        def __init__(self, *_, **__):
            pass

        def adjtimex(self, buffer):
            buffer[40:44] = status.to_bytes(4, "little")
            return 0

    monkeypatch.setattr(machine.ctypes, "CDLL", Libc)
    assert check_clock().level is level


@pytest.mark.parametrize("clock", ["", "your clock seems 596 s behind 3 peers (median)"])
def test_what_peers_say_of_the_clock_is_passed_on(monkeypatch, tmp_path, clock):
    """A running daemon has compared its clock; without one there is no comparison."""
    datadir = DataDir(tmp_path)
    assert _look_at_daemon(datadir) == []
    status = NodeStatus("peer", "run", "name", (), "paused", clock, 0.0, clock=clock)
    monkeypatch.setattr(api_client, "fetch", lambda *_: status.to_json())
    assert [one.found for one in _look_at_daemon(datadir)] == ([clock] if clock else [])


async def test_peers_are_dialled_and_one_is_enough():
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: no other process gets it
        good, bad = (
            f"/ip4/127.0.0.1/tcp/{number}/p2p/{PEER}" for number in (port, closed.getsockname()[1])
        )
        assert levels(await check_peers((good,))) == [FindingLevel.OK]
        assert levels(await check_peers((bad,))) == [FindingLevel.FAILURE]
        assert levels(await check_peers((bad, good))) == [FindingLevel.WARNING, FindingLevel.OK]
    assert await check_peers(()) == []
    server.close()


def test_without_an_address_of_its_own_a_node_is_reached_through_relays():
    assert check_reachable(0, None).level is FindingLevel.WARNING
    assert check_reachable(31337, "192.0.2.1").level is FindingLevel.OK


@pytest.mark.parametrize(
    ("task", "level"), [("arithmetic", FindingLevel.WARNING), ("code/sums", FindingLevel.FAILURE)]
)
def test_a_machine_without_a_jail_can_only_score_characters(monkeypatch, task, level):
    manifest = run_manifest(environment={"name": task})
    monkeypatch.setenv("PATH", "/nowhere")
    finding = check_jail(manifest)
    assert finding.level is level
    assert "bwrap" in finding.found


@needs_jail
def test_a_jail_that_holds_is_well():
    assert check_jail(None).level is FindingLevel.OK


@pytest.mark.live
async def test_p2pd_listens_unless_its_port_is_taken():
    assert (await check_p2pd("127.0.0.1", 0)).level is FindingLevel.OK
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = await check_p2pd("127.0.0.1", taken.getsockname()[1])
    assert finding.level is FindingLevel.FAILURE
    assert "port" in finding.found


async def test_an_engine_tries_itself_in_a_process_of_its_own():
    finding = await check_engine("cpu", RECIPE)
    assert finding.level is FindingLevel.OK, finding
    assert "on cpu" in finding.found


async def test_an_engine_that_dies_or_hangs_is_a_failure(tmp_path, monkeypatch):
    finding = await check_engine("cpu", tmp_path / "nowhere.toml")
    assert finding.level is FindingLevel.FAILURE
    assert "nowhere.toml" in finding.found
    monkeypatch.setattr(engine, "ENGINE_SECONDS", 0.1)
    finding = await check_engine("cpu", RECIPE)
    assert (finding.level, "0.1 s" in finding.found) == (FindingLevel.FAILURE, True)


@pytest.mark.live
@pytest.mark.parametrize(("named", "code"), [(True, 0), (False, 78)])
def test_the_command_takes_the_nodes_options_and_tells_by_its_exit_code(
    tmp_path, capsys, named, code
):
    key = load_or_create_identity(open_data_dir(tmp_path / "data").identity).peer_id
    others = [Identity(bytes([number]) * 32).peer_id for number in range(1, 4)]
    signed = found_run(
        load_recipe(RECIPE.read_text()),
        "0f" * 32,
        {},
        Identity(b"\x09" * 32),
        [key] if named else [PEER],
        others,
    )
    run = tmp_path / "run.toml"
    run.write_text(manifest_toml(signed))
    arguments = ["--run", str(run), "--data-dir", str(tmp_path / "data"), "--role", "trainer"]
    assert main(["doctor", "--no-engine", "--json", *arguments]) == code
    found = {item["what"]: item for item in json.loads(capsys.readouterr().out)}
    assert found["run"]["level"] == "ok"
    assert found["memory"]["found"].startswith("trainer needs about")
    assert ("key" in found) is not named
    left = [path.name for path in (tmp_path / "data").iterdir()]
    assert sorted(left) == ["identity.key", "version"], "it looks and changes nothing"


@pytest.mark.live
def test_who_has_no_data_directory_yet_gets_none(tmp_path, capsys):
    validators = [Identity(bytes([number]) * 32).peer_id for number in range(1, 4)]
    signed = found_run(
        load_recipe(RECIPE.read_text()), "0f" * 32, {}, Identity(b"\x09" * 32), [PEER], validators
    )
    run = tmp_path / "run.toml"
    run.write_text(manifest_toml(signed))
    arguments = ["--run", str(run), "--data-dir", str(tmp_path / "data")]
    assert main(["doctor", "--no-engine", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)[0]["what"] == "run"
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
