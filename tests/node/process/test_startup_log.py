import asyncio

import structlog

from node.api.status import Stage
from node.process.startup_log import LINE_SECONDS, LOOK_SECONDS, StartupLog
from tests.worlds.network import run_virtual


class Line:
    def __init__(self):
        self.shown = []

    def show(self, text, share):
        self.shown.append((text, share))


def told(*stages, line=None):
    """Return (event, reason) of the log lines during the stages.

    Each stage is a pair (seconds, stage).
    """

    async def scenario():
        at = stages[0][1]
        running = asyncio.create_task(StartupLog(lambda: at, line).run())
        for seconds, at in stages:  # noqa: B007 - the task reads it
            await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.wait([running])

    with structlog.testing.capture_logs() as logs:
        run_virtual(scenario())
    return [entry["event"] for entry in logs]


def fetching(share):
    return Stage("syncing", f"fetching weights {int(100 * share)} %, 12 s left", share)


def test_each_step_of_a_start_is_one_line():
    assert told(
        (1, Stage("starting", "loading libraries")),
        (1, Stage("joining", "looking for peers")),
        (1, Stage("syncing", "synchronising")),
        (1, Stage("syncing", "synchronising (2 of 9 messages)", 2 / 9)),
        (1, Stage("syncing", "synchronising (8 of 9 messages)", 8 / 9)),
        (1, fetching(0.43)),
        (1, fetching(0.9)),
        (1, Stage("ready")),
        (1, Stage("paused", "disk full")),
        (1, Stage("ready")),
    ) == [
        "looking for peers",
        "synchronising",
        "synchronising (2 of 9 messages)",
        "fetching weights 43 %, 12 s left",
        "ready",
        "paused",
        "ready",
    ]


def test_a_wait_that_goes_on_is_told_now_and_then():
    lines = told((3.5 * LINE_SECONDS, fetching(0.5)))
    assert len(lines) == 4
    assert len(told((3.5 * LINE_SECONDS, Stage("ready")))) == 1


def test_the_bar_is_there_while_it_starts_and_gone_afterwards():
    line = Line()
    told((LOOK_SECONDS, fetching(0.5)), (1, Stage("ready")), line=line)
    assert line.shown[0] == ("fetching weights 50 %, 12 s left", 0.5)
    assert line.shown[-1] == ("", None)
    interrupted = Line()
    told((1, fetching(0.5)), line=interrupted)
    assert interrupted.shown[-1] == ("", None)
