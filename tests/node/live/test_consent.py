"""The question before a run is joined that only peers have told of, on a real terminal."""

import asyncio
import io
import os
import pty
import sys
from contextlib import ExitStack

import pytest

from node.live import consent
from node.local.errors import ExitCode, NodeError
from protocol.codec import encode
from protocol.faults import FaultCode
from protocol.manifest import decode_manifest
from tests.worlds.messages import run_manifest

MANIFEST = run_manifest()


@pytest.fixture
def seat(monkeypatch):
    """Return what makes a terminal the standard streams, and gives who sits in front of it.

    A test calls it, since pytest has streams of its own for every phase.
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


@pytest.mark.parametrize(
    ("typed", "joined"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("yolo\n", False)],
)
async def test_a_person_sees_id_and_creator_and_decides(seat, typed, joined):
    terminal = seat()
    asking = asyncio.create_task(consent.agreed(MANIFEST))
    await asyncio.sleep(0.05)
    assert not asking.done()
    shown = os.read(terminal, 4096).decode()
    assert MANIFEST.run_id.hex() in shown
    assert MANIFEST.genesis.creator in shown
    os.write(terminal, typed.encode())
    assert await asyncio.wait_for(asking, 5) is joined


def test_every_date_that_a_manifest_may_have_is_shown():
    last = MANIFEST.genesis.model_copy(update={"created_at": 2**37})
    assert "6325" in consent.question(MANIFEST.model_copy(update={"genesis": last}))
    values = MANIFEST.model_dump(mode="json")
    values["genesis"]["created_at"] = 2**37 + 1
    assert decode_manifest(encode(values)).code is FaultCode.BAD_MANIFEST


async def test_a_question_can_be_left(seat):
    seat()
    asking = asyncio.create_task(consent.agreed(MANIFEST))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


async def test_a_program_is_told_which_option_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(NodeError, match=f"--run-id {MANIFEST.run_id.hex()}") as caught:
        await consent.agreed(MANIFEST)
    assert caught.value.exit_code is ExitCode.CONFIG
    assert "\n" not in caught.value.message
