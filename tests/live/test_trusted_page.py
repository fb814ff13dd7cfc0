"""A node that joins with the page of a join command, and peers that do not show that page."""

from tests.live.test_founded_run import (
    PATIENCE_SECONDS,
    WITH_SHARED_ENGINES,
    Node,
    beginning,
    founded,
)

pytestmark = WITH_SHARED_ENGINES

OTHER = f"1:{'ab' * 32}"


def test_a_node_does_not_join_a_history_without_its_page(tmp_path, nodes):
    run = founded(tmp_path)
    address = beginning(run, nodes)
    nodes.append(Node(run / "validator-1", "--role", "validator", "--initial-peers", address))
    nodes[0].until(lambda status: status["council"]["final_epoch"] > 3)
    for page in (("--page", OTHER), ()):  # a later start checks the same page
        options = ("--role", "relay", "--initial-peers", address, *page)
        nodes.append(Node(tmp_path / "joins", *options))
        assert nodes[-1].process.wait(PATIENCE_SECONDS) == 76
        last = nodes[-1].log.read_text().rstrip().split("\n")[-1]
        assert f"show another history than that of page {OTHER}, and none shows" in last
