import shlex
import subprocess
from pathlib import Path

from node.testnet.fleet import (
    free_port,
    join_command,
    program,
    restart_command,
    status_command,
    tail,
)
from node.testnet.plan import NodePlan
from protocol.core.types import Role
from tests.node.testnet.testnet_swarms import peer_id

RUN_ID = "ab" * 32
ADDRESS = f"/ip4/127.0.0.1/tcp/40001/p2p/{peer_id('relay-1')}"


def plan(role: Role, behaviour: str = "") -> NodePlan:
    return NodePlan("node", role, behaviour, Path("/data/a node"), peer_id("node"))


def test_the_join_command_is_one_shell_command_for_an_inference_node():
    words = shlex.split(join_command((ADDRESS,), RUN_ID, Path("/tmp/a guest")))
    assert words[: len(program()) + 2] == [*program(), "--role", "inference"]
    assert words[words.index("--data-dir") + 1] == "/tmp/a guest"
    assert shlex.split(status_command(Path("/tmp/a guest"))) == [
        *(*program(), "status", "--data-dir", "/tmp/a guest")
    ]
    assert words[words.index("--initial-peers") + 1] == ADDRESS
    assert words[words.index("--run-id") + 1] == RUN_ID
    assert "--page" not in words, "the run id names the first council"


def test_the_join_command_names_the_page_that_seated_the_council():
    page = f"240:{'cd' * 32}"
    words = shlex.split(join_command((ADDRESS,), RUN_ID, Path("guest"), page))
    assert words[words.index("--page") + 1] == page


def test_the_program_is_found_from_anywhere(tmp_path):
    """The shell may lack the environment in which the testnet was started."""
    told = subprocess.run(
        [*program(), "version"], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert told.stdout.startswith("prime-node ")


def test_a_restart_keeps_data_directory_and_peers():
    words = shlex.split(restart_command(plan(Role.TRAINER), (ADDRESS,), 0))
    assert words == [
        *program(),
        "--role",
        "trainer",
        "--name",
        plan(Role.TRAINER).name,
        "--data-dir",
        "/data/a node",
        "--host",
        "127.0.0.1",
        "--initial-peers",
        ADDRESS,
    ]


def test_a_trainer_comes_back_with_its_ranks():
    words = shlex.split(restart_command(plan(Role.TRAINER), (ADDRESS,), 0, {"trainer_ranks": "2"}))
    assert words[-4:] == ["--trainer-ranks", "2", "--initial-peers", ADDRESS]


def test_the_first_relay_comes_back_on_its_port():
    words = shlex.split(restart_command(plan(Role.RELAY), (), 40001))
    assert words[-3:] == ["--port", "40001", "--new-swarm"]


def test_a_liar_comes_back_as_a_liar():
    words = shlex.split(restart_command(plan(Role.INFERENCE, "forged-proofs"), (ADDRESS,), 0))
    assert words[: len(program()) + 2] == [*program(), "adversary", "forged-proofs"]


def test_a_free_port_is_one_that_can_be_bound():
    assert 1024 <= free_port() <= 65_535


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("a\nb\nc\nd\n")
    assert tail(log) == "b\nc\nd"
    assert tail(tmp_path / "none.log") == ""
