"""Mesh observer: GRAFT and PRUNE between gossip routers, decoded from the wire.

A GRAFT or PRUNE is an event when it is written. A PRUNE is a second event when its reader has
processed it and reads on. So checkers know the state of a router when it grafted. Both events may
be far apart, since bytes of untrusted peers wait.

The decoder does not use the router's codec but the pubsub schema: RPC {3 control}, control {3
graft, 4 prune}, graft {1 topic}, prune {1 topic, 3 backoff seconds}.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

from simulations.network.streams import Pipe, PipeMaker

Record = Callable[..., None]
"""``record(node, kind, **facts)``."""

_CONTROL, _GRAFT, _PRUNE, _TOPIC, _BACKOFF = 3, 3, 4, 1, 3
_VARINT, _LENGTH = 0, 2

_READ_KEPT = 4096
"""Cached decoded writes: the same bytes go to several peers, and are written and read."""


@dataclass(frozen=True, slots=True)
class MeshControl:
    """A GRAFT or PRUNE of one topic; a PRUNE carries a backoff in seconds."""

    kind: Literal["graft", "prune"]
    topic: str
    """The last component of its name."""
    backoff_seconds: int = 0


class MeshPipe(Pipe):
    """An observed pipe between two routers."""

    __slots__ = ("_came_bytes", "_record", "_untold")

    def __init__(self, record: Record, *pipe: Any) -> None:
        super().__init__(*pipe)
        self._record = record
        self._came_bytes = 0
        self._untold: deque[tuple[int, MeshControl]] = deque()
        """PRUNEs that have arrived, each with the end of its write in the byte stream."""

    def _send(self, data: bytes) -> None:
        for control in mesh_control(data):
            self._tell(self._way.source, self._way.target, control.kind, control)
        super()._send(data)

    def _arrive(self, data: bytes) -> None:
        waiting = len(self._items)
        super()._arrive(data)
        if len(self._items) == waiting:
            return  # held back, or without a reader
        self._came_bytes += len(data)
        for control in mesh_control(data):
            if control.kind == "prune":
                self._untold.append((self._came_bytes, control))

    def read(self, bytes_max: int) -> Coroutine[Any, Any, bytes]:
        """Read from the pipe; a reader that reads again has processed what it took before."""
        if self._untold and not self.broken:
            taken_bytes = self._came_bytes - sum(map(len, self._items))
            while self._untold and self._untold[0][0] <= taken_bytes:
                _, prune = self._untold.popleft()
                self._tell(self._way.target, self._way.source, "prune-in", prune)
        return Pipe.read(self, bytes_max)  # super() would slow down each read of gossip

    def _tell(self, node: str, peer: str, kind: str, control: MeshControl) -> None:
        backoff = {} if control.kind == "graft" else {"backoff": control.backoff_seconds}
        self._record(node, kind, peer=peer, topic=control.topic, **backoff)


def mesh_pipes(record: Record) -> PipeMaker:
    """Return the maker of observed pipes."""
    return partial(MeshPipe, record)


@lru_cache(maxsize=_READ_KEPT)
def mesh_control(data: bytes) -> tuple[MeshControl, ...]:
    """Return the mesh control in a write of whole frames; frames without an RPC hold none."""
    found: list[MeshControl] = []
    try:
        for frame in _frames(data):
            for number, field in _fields(frame):
                if number == _CONTROL and isinstance(field, bytes):
                    found += _control(field)
    except (ValueError, IndexError):
        return ()
    return tuple(found)


def _control(data: bytes) -> Iterator[MeshControl]:
    for number, field in _fields(data):
        if number in (_GRAFT, _PRUNE) and isinstance(field, bytes):
            values = dict(_fields(field))
            topic, backoff = values.get(_TOPIC, b""), values.get(_BACKOFF, 0)
            if not isinstance(topic, bytes) or not isinstance(backoff, int):
                raise ValueError("fields of other types")
            name = topic.decode().rpartition("/")[2]
            yield (
                MeshControl("graft", name)
                if number == _GRAFT
                else MeshControl("prune", name, backoff)
            )


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        yield data[at : at + length]
        at += length


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _LENGTH:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError("a wire type that the schema does not use")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
