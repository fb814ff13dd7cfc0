"""Server-sent events for open pages.

``hello`` begins every stream and names the boot. ``look`` follows each second, without an id.
``happened`` has the id ``BOOT-NUMBER``, which the browser sends back when it reconnects. It then
receives the missed events, or after a restart of the node all events of the new process.
"""

import json
from collections.abc import AsyncIterator

from pydantic import TypeAdapter

from node.api.v1.answers import Overview, RunEvent, StreamTick
from node.api.v1.source import DataSource

STREAMS_MAX = 16
"""Concurrent streams; each is one of the server's connections."""

RETRY_MILLISECONDS = 2_000
SILENCE_SECONDS = 15.0
"""Interval of keep-alive comments; a recorded node sends no further events."""

_LOOK, _EVENT = TypeAdapter(StreamTick), TypeAdapter(RunEvent)


def resume_from(last_event_id: str) -> tuple[str, int]:
    """Return the boot and number of an event id; ``("", 0)`` if it is invalid."""
    boot, _, number = last_event_id[:64].rpartition("-")
    return (boot, int(number)) if boot and number.isascii() and number.isdigit() else ("", 0)


class EventStreams:
    """The open streams of one server."""

    def __init__(self, source: DataSource) -> None:
        self._source = source
        self._open = 0

    @property
    def has_room(self) -> bool:
        """True if another stream may open."""
        return self._open < STREAMS_MAX

    async def events(self, boot: str, last: int) -> AsyncIterator[bytes]:
        """Yield events until the client disconnects, beginning after ``last`` of ``boot``."""
        event_log = self._source.event_log
        self._open += 1
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
            yield _event("hello", json.dumps({"boot": event_log.boot}))
            while True:
                for number, event in event_log.after(boot, last):
                    id_ = f"{event_log.boot}-{number}"
                    yield _event("happened", _EVENT.dump_json(event).decode(), id_)
                boot, last = event_log.boot, event_log.number
                yield _event("look", _LOOK.dump_json(_tick(self._source.overview())).decode())
                while not await event_log.watch(SILENCE_SECONDS):
                    yield b": still here\n\n"
        finally:
            self._open -= 1


def _tick(seen: Overview) -> StreamTick:
    return StreamTick(
        seen.state,
        seen.reason,
        seen.epoch,
        seen.policy_version_newest,
        seen.rollouts.certified,
        seen.rollouts.rejected,
        seen.peers_connected,
    )


def _event(kind: str, data: str, id_: str = "") -> bytes:
    """Return one encoded event; JSON contains no line breaks."""
    named = f"id: {id_}\n" if id_ else ""
    return f"{named}event: {kind}\ndata: {data}\n\n".encode()
