import json
import os

import httpx
import pytest

from node.local.datadir import open_data_dir, store_api_endpoint
from node.local.memory import is_running, peak_rss_bytes
from node.testnet.plan import Options
from node.testnet.poll import sample
from tests.node.testnet.testnet_swarms import plans, status

MEGABYTE = 1_000_000


def client(answer) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


@pytest.fixture
def directory(tmp_path):
    store_api_endpoint(open_data_dir(tmp_path), 4321)
    return tmp_path


async def test_a_node_that_answers_is_read_whole(directory):
    given = status(plans(Options(directory))[0], p2pd_pid=os.getpid())

    def answer(request):
        assert str(request.url) == "http://127.0.0.1:4321/status"
        return httpx.Response(200, text=json.dumps(given.to_json()))

    taken = await sample(client(answer), directory)
    assert (taken.status, taken.pid, taken.running) == (given, os.getpid(), True)
    assert taken.peak_rss_bytes > MEGABYTE
    assert taken.p2pd_peak_rss_bytes > MEGABYTE


@pytest.mark.parametrize("text", ["", "{}", '{"peer_id": 3}', "[1"])
async def test_an_answer_that_is_no_status_counts_as_none(directory, text):
    taken = await sample(client(lambda _: httpx.Response(200, text=text)), directory)
    assert taken.running
    assert taken.status is None


async def test_a_node_that_does_not_answer_is_still_running(directory):
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    taken = await sample(client(refuse), directory)
    assert taken.running
    assert taken.status is None


async def test_a_node_whose_process_is_gone_is_not_asked(directory):
    (directory / "api.json").write_text('{"port": 1, "pid": 999999999}')
    taken = await sample(client(lambda _: pytest.fail("asked")), directory)
    assert (taken.pid, taken.running) == (999999999, False)


async def test_a_node_that_never_started_has_no_process(tmp_path):
    taken = await sample(client(lambda _: pytest.fail("asked")), tmp_path)
    assert (taken.pid, taken.running, taken.status) == (None, False, None)


def test_memory_of_nobody_is_nothing():
    assert peak_rss_bytes(None) == peak_rss_bytes(999999999) == 0
    assert not is_running(999999999)
