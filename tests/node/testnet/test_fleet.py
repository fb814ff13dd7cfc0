import shlex
from pathlib import Path

from node.testnet.fleet import free_port, join_command, restart_command, tail
from node.testnet.plan import NodePlan
from protocol.types import Role
from tests.node.testnet.testnet_swarms import peer_id

RUN_ID = "ab" * 32
ADDRESS = f"/ip4/127.0.0.1/tcp/40001/p2p/{peer_id('relay-1')}"


def plan(role: Role, behaviour: str = "") -> NodePlan:
    return NodePlan("node", role, behaviour, Path("/data/a node"), peer_id("node"))


def test_the_join_command_is_one_shell_command_for_an_inference_node():
    words = shlex.split(join_command((ADDRESS,), RUN_ID))
    assert words[:3] == ["prime-node", "--role", "inference"]
    assert words[words.index("--initial-peers") + 1] == ADDRESS
    assert words[words.index("--run-id") + 1] == RUN_ID
    assert "--data-dir" in words


def test_a_restart_keeps_data_directory_and_peers():
    words = shlex.split(restart_command(plan(Role.TRAINER), (ADDRESS,), 0))
    assert words == [
        "prime-node",
        "--role",
        "trainer",
        "--data-dir",
        "/data/a node",
        "--host",
        "127.0.0.1",
        "--initial-peers",
        ADDRESS,
    ]


def test_the_first_relay_comes_back_on_its_port():
    words = shlex.split(restart_command(plan(Role.RELAY), (), 40001))
    assert words[-3:] == ["--port", "40001", "--new-swarm"]


def test_a_liar_comes_back_as_a_liar():
    words = shlex.split(restart_command(plan(Role.INFERENCE, "forged-proofs"), (ADDRESS,), 0))
    assert words[:3] == ["prime-node", "adversary", "forged-proofs"]


def test_a_free_port_is_one_that_can_be_bound():
    assert 1024 <= free_port() <= 65_535


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("a\nb\nc\nd\n")
    assert tail(log) == "b\nc\nd"
    assert tail(tmp_path / "none.log") == ""
