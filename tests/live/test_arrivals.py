"""Download progress of a live node, over HTTP and over an event stream."""

import json
import urllib.request

import pytest

from node.cli.main import main
from node.testnet.fleet import free_port
from tests.live.test_founded_run import WITH_SHARED_ENGINES, Node, founded

pytestmark = WITH_SHARED_ENGINES

LIMIT_BYTES_PER_SECOND = 400_000
"""The weights have 3 MB: the download takes seven seconds."""


def arriving(status):
    """Return the version being downloaded if a third of it is here."""
    for one in status["arrivals"]:
        share = one["bytes_here"] / max(1, one["total_bytes"])
        if one["version"] == 0 and one["arrived_at"] is None and 1 / 3 < share < 1:
            return one
    return None


def metrics(node):
    port = json.loads(node.data.api.read_text())["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("way", ["http", pytest.param("stream", marks=pytest.mark.long)])
def test_a_node_tells_of_a_version_on_its_way(way, tmp_path, nodes, capsys):
    run = founded(tmp_path, hidden_size=256, intermediate_size=512)
    options = ["--http-port", str(free_port())] if way == "http" else []
    beginning = ("--new-swarm", "--run", str(run / "run.toml"), *options)
    rate = ("--upload-limit", f"{LIMIT_BYTES_PER_SECOND // 1000}kB/s")
    trainer = Node(run / "trainer-1", "--role", "trainer", *beginning, *rate)
    nodes.append(trainer)
    address = trainer.until(lambda status: status["addresses"])[0]
    relay = Node(tmp_path / "relay", "--role", "relay", "--initial-peers", address)
    nodes.append(relay)

    coming = relay.until(arriving)
    sender = trainer.status()["peer_id"]
    assert (coming["name"], coming["root"]) == ("version 0", sender)
    assert 0 < coming["bytes_per_second"] < 2 * LIMIT_BYTES_PER_SECOND
    assert 0 < coming["seconds_to_go"] < 120
    pieces = [stripe["pieces"] for stripe in coming["stripes"]]
    here = [stripe["pieces_here"] for stripe in coming["stripes"]]
    assert 0 < sum(here) < sum(pieces)
    assert here == [int(stripe["map"], 16).bit_count() for stripe in coming["stripes"]]
    assert {stripe["parent"] for stripe in coming["stripes"]} <= {sender, ""}
    (source,) = coming["sources"]
    assert source["name"] == sender
    ways = {"http": source["http_bytes"], "stream": source["stream_bytes"]}
    assert ways[way] > 0.9 * sum(ways.values()) >= 0.9 * coming["bytes_here"]

    assert main(["status", "--data-dir", str(relay.data.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("  version 0 "))
    assert len(line) <= 100
    assert "%" in line and "B/s" in line and ("█" in line or "▓" in line)
    told = metrics(relay)
    assert float(told["prime_node_download_pieces"]) == sum(pieces)
    labels = f'direction="received",kind="weights",way="{way}"'
    assert float(told[f"prime_node_blob_bytes_total{{{labels}}}"]) >= ways[way]

    came = relay.until(
        lambda status: [one for one in status["arrivals"] if one["arrived_at"] is not None]
    )
    assert came[0]["seconds"] > 0.5 * came[0]["total_bytes"] / LIMIT_BYTES_PER_SECOND
    assert came[0]["root_bytes"] >= came[0]["bytes_here"] == came[0]["total_bytes"]
    form = came[0]["form"]
    told = metrics(relay)
    assert told[f'prime_node_version_download_seconds_count{{form="{form}"}}'] == "1.0"
    sent = trainer.status()["traffic"]
    assert sent["weights_sent"] >= came[0]["total_bytes"]
    assert (sent["weights_sent_http"] > sent["weights_sent"] / 2) == (way == "http")

    tables = trainer.status()["tables"]
    assert tables["directory_records"] >= 1
    assert tables["directory_callers"] >= 1
    assert tables.get("http_addresses", 0) == (way == "http")
