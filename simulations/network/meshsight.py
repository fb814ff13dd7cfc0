"""What passes between gossip routers about their meshes, read off the wire.

A GRAFT or PRUNE is an event when it is written, and a PRUNE also when it arrives: so a checker
knows what a router had been told when it grafted. Read from the protobuf schema of the pubsub
specification and not with the router's own codec: RPC {3 control}, control {3 graft, 4 prune},
graft {1 topic}, prune {1 topic, 3 back-off seconds}.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from simulations.network.links import Meter, Way
from simulations.network.streams import Pipe, PipeMaker
from simulations.runtime.loop import VirtualLoop

Record = Callable[..., None]
"""``record(node, kind, **facts)``."""

_CONTROL, _GRAFT, _PRUNE, _TOPIC, _BACKOFF = 3, 3, 4, 1, 3
_VARINT, _LENGTH = 0, 2

_READ_KEPT = 4096
"""Writes whose control is remembered: the same bytes go to several peers, and each is looked at
when it leaves and when it comes."""


@dataclass(frozen=True, slots=True)
class Graft:
    """A router takes the other one into its mesh of a topic (the last word of its name)."""

    topic: str


@dataclass(frozen=True, slots=True)
class Prune:
    """A router takes the other one out, and asks it to keep away for so many seconds."""

    topic: str
    backoff_seconds: int


class MeshPipe(Pipe):
    """A pipe between two routers that is watched."""

    __slots__ = ("_record",)

    _record: Record

    def _send(self, data: bytes) -> None:
        for control in mesh_control(data):
            peer, topic = self._way.target, control.topic
            if isinstance(control, Graft):
                self._record(self._way.source, "graft", peer=peer, topic=topic)
            else:
                seconds = control.backoff_seconds
                self._record(self._way.source, "prune", peer=peer, topic=topic, backoff=seconds)
        super()._send(data)

    def _arrive(self, data: bytes) -> None:
        controls = mesh_control(data)
        if not controls:
            super()._arrive(data)
            return
        waiting = len(self._items)
        super()._arrive(data)
        if len(self._items) == waiting:
            return  # held up, or for nobody
        for control in controls:
            if isinstance(control, Prune):
                peer, seconds = self._way.source, control.backoff_seconds
                self._record(
                    self._way.target, "prune-in", peer=peer, topic=control.topic, backoff=seconds
                )


def mesh_pipes(record: Record) -> PipeMaker:
    """Return what makes watched pipes."""

    def make(
        loop: VirtualLoop,
        way: Way,
        back: Way,
        sent: Meter,
        received: Meter,
        on_end: Callable[[Pipe], None],
    ) -> Pipe:
        pipe = MeshPipe(loop, way, back, sent, received, on_end)
        pipe._record = record  # noqa: SLF001 - ours; a constructor would repeat that of the pipe
        return pipe

    return make


@lru_cache(maxsize=_READ_KEPT)
def mesh_control(data: bytes) -> tuple[Graft | Prune, ...]:
    """Return the mesh control in a write of whole frames; what is no RPC holds none."""
    try:
        return tuple(
            control
            for frame in _frames(data)
            for number, field in _fields(frame)
            if number == _CONTROL and isinstance(field, bytes)
            for control in _control(field)
        )
    except (ValueError, IndexError):
        return ()


def _control(data: bytes) -> Iterator[Graft | Prune]:
    for number, field in _fields(data):
        if number in (_GRAFT, _PRUNE) and isinstance(field, bytes):
            values = dict(_fields(field))
            topic, backoff = values.get(_TOPIC, b""), values.get(_BACKOFF, 0)
            if not isinstance(topic, bytes) or not isinstance(backoff, int):
                raise ValueError("fields of other types")
            name = topic.decode().rpartition("/")[2]
            yield Graft(name) if number == _GRAFT else Prune(name, backoff)


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
