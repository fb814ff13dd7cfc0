"""Server-sent events: what a page that is open is told.

``look`` comes each second and has no id. ``happened`` has ``BOOT-NUMBER``, which the browser sends
back when it connects again: after a broken line it is told what it missed, after a restart of the
node everything that the new process knows. ``hello`` begins every stream and names the boot.
"""

import json
from collections.abc import AsyncIterator

from pydantic import TypeAdapter

from node.api.v1.answers import RunEvent, StreamTick
from node.api.v1.source import DataSource

STREAMS_MAX = 16
"""At once; each is one of the server's connections."""

RETRY_MILLISECONDS = 2_000
SILENCE_SECONDS = 15.0
"""Then a comment tells that the line is alive: what was recorded has nothing more to tell."""

_LOOK, _HAPPENING = TypeAdapter(StreamTick), TypeAdapter(RunEvent)


def resume_from(last_event_id: str) -> tuple[str, int]:
    """Return boot and number of an event's id; nothing for what is none."""
    boot, _, number = last_event_id[:64].rpartition("-")
    return (boot, int(number)) if boot and number.isascii() and number.isdigit() else ("", 0)


class EventStreams:
    """The open streams of one server."""

    def __init__(self, source: DataSource) -> None:
        self._source = source
        self._open = 0

    @property
    def has_room(self) -> bool:
        """Whether one more may begin."""
        return self._open < STREAMS_MAX

    async def events(self, boot: str, last: int) -> AsyncIterator[bytes]:
        """Yield events until the reader has gone; those after ``last`` of ``boot`` first."""
        happenings = self._source.happenings
        self._open += 1
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
            yield _event("hello", json.dumps({"boot": happenings.boot}))
            while True:
                for number, happening in happenings.after(boot, last):
                    id_ = f"{happenings.boot}-{number}"
                    yield _event("happened", _HAPPENING.dump_json(happening).decode(), id_)
                boot, last = happenings.boot, happenings.number
                yield _event("look", _LOOK.dump_json(self._source.look_now()).decode())
                while not await happenings.watch(SILENCE_SECONDS):
                    yield b": still here\n\n"
        finally:
            self._open -= 1


def _event(kind: str, data: str, id_: str = "") -> bytes:
    """Return one event; JSON has no line breaks of its own."""
    named = f"id: {id_}\n" if id_ else ""
    return f"{named}event: {kind}\ndata: {data}\n\n".encode()
