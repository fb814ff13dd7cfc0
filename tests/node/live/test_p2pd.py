import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest

from node.live import p2pd
from node.live.p2pd import P2pd, P2pdError, P2pdOptions, StartFault
from node.local.system import SystemClock


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(p2pd, "START_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(p2pd, "STOP_SECONDS", 0.3)


def program(tmp_path: Path, script: str) -> Path:
    path = tmp_path / "p2pd"
    path.write_text(f"#!/bin/sh\necho start >> {tmp_path}/starts\n{script}\n")
    path.chmod(0o755)
    return path


async def start(tmp_path: Path, script: str) -> P2pd:
    binary = program(tmp_path, script)
    return await P2pd.start(tmp_path / "key", tmp_path, P2pdOptions(), binary)


def running(pid: int | str) -> bool:
    return Path(f"/proc/{pid}").exists()


def starts(tmp_path: Path) -> int:
    return (tmp_path / "starts").read_text().count("start")


async def test_it_is_ready_when_it_has_said_its_peer_id(tmp_path):
    daemon = await start(tmp_path, 'echo "Peer ID: 12D3"; exec sleep 30')
    assert running(daemon.pid)
    await daemon.stop()
    assert await daemon.exited() == -15
    await daemon.stop()


async def test_a_child_that_ignores_the_request_to_stop_is_killed(tmp_path):
    daemon = await start(tmp_path, 'trap "" TERM; echo "Peer ID: 12D3"; while :; do sleep 1; done')
    await daemon.stop()
    assert await daemon.exited() == -9


async def test_very_long_output_does_not_block_it(tmp_path):
    script = "head -c 300000 /dev/zero | tr '\\\\0' x; echo; echo 'Peer ID: 12D3'; exec sleep 30"
    await (await start(tmp_path, script)).stop()


async def test_its_last_words_are_the_reason_and_it_is_tried_again(tmp_path):
    with pytest.raises(P2pdError) as caught:
        await start(tmp_path, "echo 2026/01/02 03:04:05 cannot open the key; exit 1")
    assert str(caught.value) == "p2pd did not start: cannot open the key"
    assert starts(tmp_path) == p2pd.START_ATTEMPTS


async def test_silence_is_reported_with_the_exit_code(tmp_path):
    with pytest.raises(P2pdError, match="exit code 7"):
        await start(tmp_path, "exit 7")


async def test_a_port_in_use_is_not_tried_again(tmp_path):
    with pytest.raises(P2pdError) as caught:
        await start(tmp_path, "echo listen tcp4: bind: address already in use; exit 1")
    assert caught.value.fault is StartFault.PORT_IN_USE
    assert starts(tmp_path) == 1


async def test_a_child_that_never_gets_ready_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(p2pd, "START_SECONDS", 0.1)
    monkeypatch.setattr(p2pd, "START_ATTEMPTS", 1)
    before = psutil.Process().children()
    with pytest.raises(P2pdError, match="no answer within"):
        await start(tmp_path, "exec sleep 30")
    assert psutil.Process().children() == before


@pytest.mark.parametrize("content", [None, "no program"])
async def test_what_is_no_program_is_named(tmp_path, content):
    binary = tmp_path / "p2pd"
    if content is not None:
        binary.write_text(content)
    with pytest.raises(P2pdError, match=f"the p2pd binary cannot be run: {binary}") as caught:
        await P2pd.start(tmp_path / "key", tmp_path, P2pdOptions(), binary)
    assert caught.value.fault is StartFault.BINARY


async def test_an_address_that_is_not_ours_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(p2pd, "START_ATTEMPTS", 1)
    options = P2pdOptions(host="192.0.2.1", port=4001)
    with pytest.raises(P2pdError, match=r"192\.0\.2\.1:4001: Cannot assign") as caught:
        await P2pd.start(tmp_path / "key", tmp_path, options, tmp_path / "p2pd")
    assert caught.value.fault is StartFault.OTHER


def test_the_binary_is_the_one_of_the_wheel():
    assert os.access(p2pd.binary_path(), os.X_OK)


async def test_a_cancelled_start_leaves_no_child(tmp_path):
    task = asyncio.create_task(start(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 30"))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110 - the child writes it
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running((tmp_path / "pid").read_text().strip())


def test_the_clock_tells_unix_time():
    assert abs(SystemClock().now() - time.time()) < 1
