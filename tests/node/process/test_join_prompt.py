"""Confirmation before joining a run known from peers only, on a real terminal."""

import asyncio
import io
import os
import pty
import sys
from contextlib import ExitStack

import pytest

from node.founding.needs import estimate
from node.local.errors import ExitCode, NodeError
from node.local.status_line import StatusLine
from node.local.units import bytes_text
from node.process import join_prompt
from protocol.core.codec import encode
from protocol.core.faults import FaultCode
from protocol.core.types import Role
from protocol.run.manifest import decode_manifest
from tests.worlds.messages import PREDECESSOR, run_manifest, succeeding

MANIFEST = run_manifest()
ROLES = (Role.INFERENCE,)


@pytest.fixture
def seat(monkeypatch):
    """Return a function that opens a terminal as the standard streams, and its other end.

    A test calls it, since pytest replaces the streams in every phase.
    """
    with ExitStack() as opened:

        def make():
            person, ours = pty.openpty()
            opened.callback(os.close, person)
            monkeypatch.setattr(sys, "stdin", opened.enter_context(os.fdopen(ours)))
            writer = os.fdopen(os.dup(ours), "w")
            monkeypatch.setattr(sys, "stderr", opened.enter_context(writer))
            return person

        yield make
        monkeypatch.undo()


def read_until(terminal, end):
    """Return the output of a terminal up to ``end``; it may come in several parts."""
    shown = ""
    while not shown.endswith(end):
        shown += os.read(terminal, 4096).decode()
    return shown


@pytest.mark.parametrize(
    ("typed", "joined"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("yolo\n", False)],
)
async def test_a_person_sees_id_and_creator_and_decides(seat, typed, joined):
    terminal = seat()
    asking = asyncio.create_task(join_prompt.agreed(MANIFEST, ROLES, None))
    await asyncio.sleep(0.05)
    assert not asking.done()
    shown = read_until(terminal, "Join it? [y/N] ")
    assert MANIFEST.run_id.hex() in shown
    assert MANIFEST.genesis.creator in shown
    os.write(terminal, typed.encode())
    assert await asyncio.wait_for(asking, 60) is joined


async def test_the_status_line_and_logs_leave_the_question_alone(seat):
    """As in a node: logs pass above the question, and the status line follows it."""
    terminal = seat()
    line = StatusLine(sys.stderr)
    line.show("looking for peers", None)
    asking = asyncio.create_task(join_prompt.agreed(MANIFEST, ROLES, line))
    await asyncio.sleep(0.05)
    line.show("asking on the terminal whether to join", None)
    line.write("a log\n")
    shown = read_until(terminal, "\r\x1b[Ka log\r\nJoin it? [y/N] ")
    assert "asking on the terminal" not in shown
    os.write(terminal, b"y\n")
    assert await asyncio.wait_for(asking, 60)
    line.show("fetching weights", None)
    assert read_until(terminal, "fetching weights") == "y\r\n\r\x1b[Kfetching weights"


def test_an_offer_tells_what_the_run_is_and_what_it_takes():
    needs = estimate(MANIFEST)
    told = dict(
        line.split(maxsplit=1) for line in join_prompt.offer(MANIFEST, ROLES).splitlines()[2:-1]
    )
    assert list(told) == ["id", "name", "creator", "task", "model", "download", "memory", "disk"]
    assert told["model"].endswith(f"{MANIFEST.model.dtype}, {needs.weights:,} weights")
    assert told["download"].startswith(f"{bytes_text(needs.version_bytes)} a version")
    assert f"{bytes_text(needs.worker_bytes)} for inference" in told["memory"]
    assert bytes_text(needs.disk_bytes) in told["disk"]
    trainer = join_prompt.offer(MANIFEST, (Role.TRAINER, Role.RELAY))
    assert f"{bytes_text(needs.trainer_bytes)} for trainer" in trainer
    assert bytes_text(needs.trainer_disk_bytes) in trainer
    assert "memory" not in join_prompt.offer(MANIFEST, (Role.RELAY,))


def test_an_offer_names_the_run_that_the_creator_says_it_succeeds():
    shown = join_prompt.offer(succeeding(MANIFEST), ROLES)
    run, page = PREDECESSOR.run_id[:16], PREDECESSOR.page[:16]
    assert f"  succeeds  run {run}… at page {page}… (epoch 90), version 7\n" in shown


def test_what_a_creator_wrote_does_not_steer_the_terminal():
    model = MANIFEST.model.model_copy(update={"name": "\x1b[2J\rx" * 40})
    shown = join_prompt.offer(MANIFEST.model_copy(update={"model": model}), ROLES)
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert max(map(len, shown.splitlines())) < 200


def test_every_date_that_a_manifest_may_have_is_shown():
    last = MANIFEST.genesis.model_copy(update={"created_at": 2**37})
    assert "6325" in join_prompt.offer(MANIFEST.model_copy(update={"genesis": last}), ROLES)
    values = MANIFEST.model_dump(mode="json")
    values["genesis"]["created_at"] = 2**37 + 1
    assert decode_manifest(encode(values)).code is FaultCode.BAD_MANIFEST


async def test_a_question_can_be_left(seat):
    seat()
    asking = asyncio.create_task(join_prompt.agreed(MANIFEST, ROLES, None))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


async def test_a_program_is_told_which_option_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(NodeError, match=f"--run-id {MANIFEST.run_id.hex()}") as caught:
        await join_prompt.agreed(MANIFEST, ROLES, None)
    assert caught.value.exit_code is ExitCode.CONFIG
    assert "\n" not in caught.value.message
