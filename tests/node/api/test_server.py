import asyncio
import contextlib
import json
import os
import re
import signal
import socket
from dataclasses import replace

import httpx
import pytest

from node.api.metrics import REASONS_MAX, RENAMED, NodeMetrics
from node.api.server import ControlServer, application
from node.api.status import LoopStatus
from node.api.v1.answers import RolloutCounts
from node.cli.api_client import fetch, fetch_status, fetch_why
from node.local.datadir import load_api_endpoint, open_data_dir, store_api_endpoint
from node.local.errors import ExitCode, NodeError
from tests.node.api.status_examples import ARRIVED, ARRIVING, EXPLAINED, PEERS, STATUS


def client(status=STATUS, why=EXPLAINED):
    api = application(lambda: status, lambda: why)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(api), base_url="http://127.0.0.1:1", timeout=60
    )


async def get(path, status=STATUS, **options):
    async with client(status) as http:
        return await http.get(path, **options)


async def test_health_is_the_loop():
    answer = await get("/healthz", replace(STATUS, state="joining"))
    assert (answer.status_code, answer.json()) == (200, {"alive": True, "pid": os.getpid()})


@pytest.mark.parametrize("state", ["joining", "syncing", "paused", "draining"])
async def test_readiness_names_what_is_missing(state):
    answer = await get("/readyz", replace(STATUS, state=state, reason="no peer answers"))
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "state": state, "reason": "no peer answers"}


async def test_ready():
    assert (await get("/readyz")).status_code == 200


async def test_status_and_peers_are_the_snapshot():
    expected = json.loads(json.dumps(STATUS.to_json()))
    assert (await get("/status")).json() == expected
    assert (await get("/peers")).json() == {
        "peers_connected": 7,
        "members": expected["members"],
        "gossip_peers": expected["gossip_peers"],
    }
    told = expected["gossip_peers"][-2]
    assert (told["peer_id"], told["score"], told["level"]) == (PEERS[5], -11.0, "no-gossip")
    assert (told["backoff_seconds"], told["breaches"], told["faults"]) == ({"commits": 42.5}, 2, 1)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
async def test_a_foreign_host_name_is_refused(host):
    assert (await get("/status", headers={"host": host})).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:31338", "127.0.0.1:9"])
async def test_our_own_names_are_served(host):
    assert (await get("/status", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_nothing_can_be_commanded(method):
    async with client() as http:
        assert (await http.request(method, "/status")).status_code == 405


async def test_metrics_follow_the_status():
    lines = (await get("/metrics")).text.splitlines()
    assert 'prime_node_state{state="ready"} 1.0' in lines
    assert 'prime_node_state{state="paused"} 0.0' in lines
    assert "prime_node_peers 7.0" in lines
    assert 'prime_node_gossip_bytes_total{direction="sent"} 1.2e+07' in lines
    assert not any(line.startswith("prime_node_bytes") for line in lines)
    assert "prime_node_members 7.0" in lines
    for line in (
        "council_members 3.0",
        "council_member 0.0",
        "council_members_absent 1.0",
        "council_votes_missing 1.0",
        "page_final_epoch 410.0",
        "page_final_age_epochs 2.0",
        "page_final_age_seconds 3.5",
        "leader_term 3.0",
        "leader_live 1.0",
        "version_final 39.0",
        "pages_notarised_fraction 0.95",
        "pages_drawing_fraction 0.9",
    ):
        assert f"prime_node_{line}" in lines
    assert "prime_node_dial_failures_total 3.0" in lines
    assert 'prime_node_state_seconds_total{state="syncing"} 12.5' in lines
    assert "prime_node_disk_free_bytes 5e+09" in lines
    assert "prime_node_p2pd_memory_bytes 8e+07" in lines
    assert any('version="0.1.0"' in line for line in lines if line.startswith("prime_node_info"))
    assert not any("12D3KooW" in line for line in lines if not line.startswith("prime_node_info"))


def scrape(*statuses):
    """Return the metrics of one node after each of the statuses."""
    given = iter(statuses)
    metrics = NodeMetrics(lambda: next(given))
    return [metrics.exposition().decode().splitlines() for _ in statuses]


def test_metrics_count_rollouts_from_the_first_look():
    later = RolloutCounts(870, 815, 14, 4, 795, {"computation": 10, "rewards": 3, "format": 1})
    own = replace(STATUS.yours, certified=129)
    first, lines = scrape(STATUS, replace(STATUS, rollouts=later, yours=own))
    assert 'prime_node_rollouts_total{outcome="certified"} 0.0' in first
    assert 'prime_node_rollouts_rejected_total{reason="computation"} 0.0' in first
    assert 'prime_node_rollouts_total{outcome="certified"} 3.0' in lines
    assert 'prime_node_own_rollouts_total{outcome="certified"} 1.0' in lines
    assert 'prime_node_rollouts_rejected_total{reason="computation"} 1.0' in lines
    assert 'prime_node_rollouts_rejected_total{reason="format"} 1.0' in lines
    assert "prime_node_rollouts_committed_total 10.0" in lines
    assert "prime_node_rollouts_trained_total 5.0" in lines
    outcomes = [line for line in lines if line.startswith("prime_node_rollouts_total{")]
    assert sum(float(line.split()[-1]) for line in outcomes) == 3 + 2, "each counts once"


def test_what_the_disk_holds_is_no_increase():
    """A new process answers before it has read its disk, which then adds hundreds of rollouts."""
    nothing = replace(STATUS, restored=False, rollouts=RolloutCounts())
    half = replace(STATUS, restored=False, rollouts=RolloutCounts(certified=400))
    _, _, restored = scrape(nothing, half, STATUS)
    assert 'prime_node_rollouts_total{outcome="certified"} 0.0' in restored


def test_no_counter_falls():
    """Expired commits are certified late: after a fall, increases would be the whole count."""
    corrected = replace(
        STATUS, rollouts=replace(STATUS.rollouts, expired=3, rejected=11, rejected_reasons={})
    )
    *_, lines = scrape(STATUS, corrected, STATUS, corrected)
    assert 'prime_node_rollouts_total{outcome="expired"} 1.0' in lines
    assert 'prime_node_rollouts_total{outcome="rejected"} 1.0' in lines
    assert 'prime_node_rollouts_rejected_total{reason="computation"} 9.0' in lines


async def test_metrics_tell_of_scores_in_seven_series_however_many_peers_there_are():
    lines = (await get("/metrics")).text.splitlines()
    assert [line for line in lines if line.startswith("prime_node_gossip_peers{")] == [
        'prime_node_gossip_peers{level="good"} 5.0',
        'prime_node_gossip_peers{level="no-mesh"} 0.0',
        'prime_node_gossip_peers{level="no-gossip"} 1.0',
        'prime_node_gossip_peers{level="no-publish"} 0.0',
        'prime_node_gossip_peers{level="graylisted"} 1.0',
    ]
    assert "prime_node_gossip_score_min -91.0" in lines
    assert f"prime_node_gossip_score_mean {(3.75 - 102) / 7}" in lines
    alone = (await get("/metrics", replace(STATUS, gossip_peers=()))).text.splitlines()
    assert "prime_node_gossip_score_mean 0.0" in alone
    told = ("prime_node_gossip_peers", "prime_node_gossip_score")
    assert sum(line.startswith(told) for line in alone) == 7


async def test_metrics_have_the_downloads_durations_and_delays_of_the_status():
    loop = LoopStatus((90, 5, 0, 2, 1, 0, 0, 0, 1), 4.5, 3.25, 0.75)
    lines = (await get("/metrics", replace(STATUS, loop=loop))).text.splitlines()
    for line in (
        'prime_node_loop_delay_seconds_bucket{le="0.01"} 90.0',
        'prime_node_loop_delay_seconds_bucket{le="0.1"} 97.0',
        'prime_node_loop_delay_seconds_bucket{le="+Inf"} 99.0',
        "prime_node_loop_delay_seconds_count 99.0",
        "prime_node_loop_delay_seconds_sum 4.5",
        "prime_node_loop_delay_max_seconds 3.25",
        "prime_node_loop_cpu_delay_max_seconds 0.75",
        'prime_node_generation_seconds_bucket{le="1.0"} 103.0',
        "prime_node_generation_seconds_count 120.0",
        "prime_node_generation_seconds_sum 310.5",
        'prime_node_check_seconds_bucket{le="0.1"} 37.0',
        'prime_node_check_seconds_bucket{le="+Inf"} 40.0',
        "prime_node_check_seconds_sum 4.25",
        'prime_node_policy_swap_seconds_bucket{le="5.0"} 3.0',
        'prime_node_policy_swap_seconds_bucket{le="+Inf"} 41.0',
        "prime_node_policy_swap_seconds_sum 290.5",
        "prime_node_download_version 42.0",
        "prime_node_download_pieces 952.0",
        "prime_node_download_pieces_held 359.0",
        "prime_node_download_bytes_per_second 1.23e+07",
        "prime_node_download_remaining_seconds 50.2",
        'prime_node_version_download_seconds_bucket{form="patch",le="0.5"} 9.0',
        'prime_node_version_download_seconds_bucket{form="patch",le="10.0"} 12.0',
        'prime_node_version_download_seconds_bucket{form="patch",le="+Inf"} 13.0',
        'prime_node_version_download_seconds_count{form="patch"} 13.0',
        'prime_node_version_download_seconds_sum{form="patch"} 2345.5',
        'prime_node_blob_bytes_total{direction="sent",kind="body",way="stream"} 7e+08',
        'prime_node_blob_bytes_total{direction="sent",kind="weights",way="stream"} 4e+08',
        'prime_node_blob_bytes_total{direction="sent",kind="weights",way="http"} 2e+09',
        'prime_node_blob_bytes_total{direction="received",kind="body",way="stream"} 5e+07',
        'prime_node_blob_bytes_total{direction="received",kind="weights",way="stream"} 1e+08',
        'prime_node_blob_bytes_total{direction="received",kind="weights",way="http"} 1.1e+09',
    ):
        assert line in lines, line


async def test_metrics_while_nothing_comes():
    older = replace(ARRIVING, version=7)
    stuck = replace(ARRIVING, stripes=(), seconds_to_go=None)
    file = replace(ARRIVING, name="bundle", version=-1, seconds_to_go=5.0)
    lines = (await get("/metrics", replace(STATUS, arrivals=(stuck, older)))).text.splitlines()
    assert "prime_node_download_version 42.0" in lines
    assert "prime_node_download_pieces 0.0" in lines
    assert "prime_node_download_remaining_seconds +Inf" in lines
    lines = (await get("/metrics", replace(STATUS, arrivals=(file, ARRIVED)))).text.splitlines()
    assert "prime_node_download_version -1.0" in lines
    assert "prime_node_download_remaining_seconds 0.0" in lines


def test_reasons_of_others_cannot_blow_up_the_metrics():
    counts = replace(STATUS.rollouts, rejected_reasons={f"r{number}": 1 for number in range(99)})
    none = replace(STATUS.rollouts, rejected_reasons={})
    _, lines = scrape(replace(STATUS, rollouts=none), replace(STATUS, rollouts=counts))
    rows = [line for line in lines if line.startswith("prime_node_rollouts_rejected_total")]
    assert len(rows) == REASONS_MAX + 1
    assert f'prime_node_rollouts_rejected_total{{reason="other"}} {99 - REASONS_MAX}.0' in rows


@contextlib.asynccontextmanager
async def served(datadir, status=STATUS, why=EXPLAINED):
    server = ControlServer(lambda: status, lambda: why, datadir=datadir)
    try:
        yield await server.start()
    finally:
        await server.stop()
        await server.stop()


@pytest.fixture
def datadir(tmp_path):
    return open_data_dir(tmp_path / "data")


async def test_commands_find_the_server_through_the_data_dir(datadir):
    async with served(datadir) as port:
        endpoint = load_api_endpoint(datadir)
        assert (endpoint.port, endpoint.pid) == (port, os.getpid())
        assert await asyncio.to_thread(fetch_status, datadir) == STATUS
        why = await asyncio.to_thread(fetch_why, datadir)
        assert why == EXPLAINED
    with pytest.raises(NodeError, match="no daemon is running"):
        fetch_status(datadir)


async def test_the_server_leaves_signals_to_the_daemon(datadir):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with served(datadir):
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert before == during


async def test_a_node_that_is_started_again_is_found_at_the_same_address(datadir):
    async with served(datadir) as first:
        pass
    async with served(datadir) as second:
        assert second == first
        other = open_data_dir(datadir.root.with_name("other"))
        other.api_port.write_text(f"{first}\n")
        async with served(other) as third:  # another process has the port by now
            assert third != first
    for damaged in ("", "x", "0", "70000", "-1"):
        other.api_port.write_text(damaged)
        async with served(other) as port:
            assert port > 0


async def test_it_listens_on_this_machine_alone(datadir):
    server = ControlServer(lambda: STATUS, lambda: EXPLAINED)
    port = await server.start()
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))
    await server.stop()


async def test_stopping_does_not_wait_for_a_client_that_hangs(datadir):
    async with asyncio.timeout(60):
        async with served(datadir) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /status HTTP/1.1\r\nHost: local")
            await writer.drain()
        writer.close()


async def test_a_taken_port_is_one_line(datadir):
    async with served(datadir) as port:
        with pytest.raises(NodeError) as caught:
            await ControlServer(lambda: STATUS, lambda: EXPLAINED, port).start()
    assert caught.value.exit_code is ExitCode.RETRY
    assert caught.value.message == (
        f"cannot open the control API on 127.0.0.1:{port}: address already in use; "
        "choose another --api-port, or 0 for a free one"
    )


def test_no_daemon_was_ever_here(datadir):
    with pytest.raises(NodeError) as caught:
        fetch_status(datadir)
    assert caught.value.exit_code is ExitCode.NO_DAEMON
    assert caught.value.message == (
        f"no daemon is running in {datadir.root}; start one with prime-node --role ROLE, "
        "or name its directory with --data-dir"
    )


def test_a_daemon_that_died_left_its_port_behind(datadir):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        store_api_endpoint(datadir, unused.getsockname()[1])
    with pytest.raises(NodeError) as caught:
        fetch(datadir, "/status")
    assert caught.value.exit_code is ExitCode.NO_DAEMON


async def answering(datadir, answer):
    """Serve ``answer`` to every connection, and return the error of ``fetch_status``."""

    served = asyncio.Event()

    async def handle(reader, writer):
        with contextlib.suppress(ConnectionError):  # the client hangs up after enough bytes
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    store_api_endpoint(datadir, server.sockets[0].getsockname()[1])
    try:
        with pytest.raises(NodeError) as caught:
            await asyncio.to_thread(fetch_status, datadir)
        await served.wait()
    finally:
        server.close()
    return caught.value


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b"HTTP/1.1 404 Not Found\r\n\r\n{}",
    ],
)
async def test_something_else_took_the_port(datadir, answer):
    error = await answering(datadir, answer)
    assert error.exit_code is ExitCode.NO_DAEMON
    assert error.message.startswith("no daemon is running in ")


async def test_a_daemon_of_another_version(datadir):
    error = await answering(datadir, b'HTTP/1.1 200 OK\r\n\r\n{"peer_id": "x"}')
    assert error.exit_code is ExitCode.NO_DAEMON
    assert "is of another version than this command; restart it" in error.message


async def test_a_daemon_that_hangs(datadir, monkeypatch):
    monkeypatch.setattr("node.cli.api_client.REQUEST_SECONDS", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store_api_endpoint(datadir, silent.getsockname()[1])
        with pytest.raises(NodeError) as caught:
            await asyncio.to_thread(fetch_status, datadir)
    assert caught.value.exit_code is ExitCode.RETRY
    assert "did not respond within" in caught.value.message


async def test_renamed_metrics_have_their_old_names_for_one_release():
    lines = (await get("/metrics")).text.splitlines()
    for new, old in RENAMED.items():
        told = [
            line for line in lines if re.match(rf"{new}(_bucket|_count|_sum|_total)?[ {{]", line)
        ]
        assert told, new
        assert {line.replace(new, old, 1) for line in told} <= set(lines)
