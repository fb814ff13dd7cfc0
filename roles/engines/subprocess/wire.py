"""Wire protocol between a daemon and its engine process: framed msgpack with bounded messages.

A frame is a big-endian length of four bytes and ``[message name, fields]``. The engine process
sends first, with the version of this module, because it may belong to another installation. A long
argument travels before its call, some elements a frame, as the items of a result travel after it.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgpack
from pydantic import BaseModel, ConfigDict, Field

from protocol.core import codec
from protocol.core.types import RANKS_MAX
from protocol.run.manifest import MANIFEST_BYTES_MAX
from roles.engines.factory import EngineName
from roles.ports.storage import StorageFullError

VERSION = 8
"""Increase with any change to a message here or to a type in ``rpc_methods``."""

QUESTION_BYTES_MAX = 1 << 24
"""A frame holds one claimed sequence: 700,000 tokens at 22 bytes, with their proofs."""

PART_BYTES = 1 << 20
"""Elements of a long argument in one frame, unless a single one is longer. A guess."""

ANSWER_BYTES_MAX = 1 << 26
"""A frame holds one sequence: a million tokens at 30 bytes, and their proofs."""

_LENGTH_BYTES = 4
_ANSWERING_MAX = 1 << 62

CallId = Annotated[int, Field(ge=1, le=_ANSWERING_MAX)]
Kind = Literal["generation", "verification", "training"]
"""The engines that a process can make, named like the methods of ``Engines``."""

ErrorName = Literal["ValueError", "LookupError", "StorageFullError", "EngineError"]
"""Errors that the ports document; every other one is an ``EngineError``."""

TOLD: Mapping[ErrorName, type[Exception]] = {
    "ValueError": ValueError,
    "LookupError": LookupError,
    "StorageFullError": StorageFullError,
}
"""Exception types of the names other than ``EngineError``."""

PATH_CHARACTERS_MAX = 4096
REASON_CHARACTERS_MAX = 1000
TRACE_CHARACTERS_MAX = 8000


class WireError(Exception):
    """Invalid message from the other side."""


class EngineMessage(BaseModel):
    """Contents of one frame."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hello(EngineMessage):
    """First message of an engine process; all others require equal versions."""

    version: Annotated[int, Field(ge=0, le=2**31)]
    software: Annotated[str, Field(max_length=100)]


class Make(EngineMessage):
    """Make the one engine of this process.

    ``manifest`` is the canonical run manifest; ``engine``, ``device`` and ``gpus`` are as in
    ``engines_of``. ``rank``, ``ranks`` and ``rendezvous`` are as in ``RankPlace``: the daemon makes
    the same calls to all processes of a group, and only rank 0 sends the items of a result.
    """

    kind: Kind
    engine: EngineName
    manifest: Annotated[bytes, Field(max_length=MANIFEST_BYTES_MAX)]
    device: Annotated[str, Field(max_length=100)]
    gpus: Annotated[int, Field(ge=1, le=1024)]
    rank: Annotated[int, Field(ge=0, lt=RANKS_MAX)]
    ranks: Annotated[int, Field(ge=1, le=RANKS_MAX)]
    rendezvous: Annotated[str, Field(max_length=PATH_CHARACTERS_MAX)]
    memory_bytes_max: Annotated[int, Field(ge=1)] | None
    heartbeat_seconds: Annotated[float, Field(gt=0, le=3600)]


class Call(EngineMessage):
    """Call a method of the engine; ``rpc_methods`` validates ``arguments``."""

    id: CallId
    method: Annotated[str, Field(max_length=100)]
    arguments: tuple[Any, ...]


class CallPart(EngineMessage):
    """Elements of a long argument, each in msgpack, in order; sent before its call."""

    id: CallId
    elements: tuple[bytes, ...]


class CancelCall(EngineMessage):
    """Cancel a call, sent or not; its result is no longer needed."""

    id: CallId


class Made(EngineMessage):
    """The engine is ready."""


class Item(EngineMessage):
    """One item of a call's result, in order; ``rpc_methods`` validates ``value``."""

    id: CallId
    value: Any


class CallDone(EngineMessage):
    """A call succeeded."""

    id: CallId


class Failed(EngineMessage):
    """A call raised; ``id`` is None if the engine could not be made."""

    id: CallId | None
    error: ErrorName
    reason: Annotated[str, Field(max_length=REASON_CHARACTERS_MAX)]
    trace: Annotated[str, Field(max_length=TRACE_CHARACTERS_MAX)]


class EngineHeartbeat(EngineMessage):
    """Heartbeat: resident memory, and the tokens computed since the process started."""

    memory_bytes: Annotated[int, Field(ge=0)]
    tokens: Annotated[int, Field(ge=0)]


class FirstTokenNotice(EngineMessage):
    """Seconds from the load of a policy to its first token."""

    version: Annotated[int, Field(ge=0, le=_ANSWERING_MAX)]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


M = TypeVar("M", bound=EngineMessage)


def _named(*messages: type[M]) -> Mapping[str, type[M]]:
    return {message.__name__: message for message in messages}


QUESTIONS: Mapping[str, type[EngineMessage]] = _named(Make, CallPart, Call, CancelCall)
"""Messages that the daemon sends."""

ANSWERS: Mapping[str, type[EngineMessage]] = _named(
    Hello, Made, Item, CallDone, Failed, EngineHeartbeat, FirstTokenNotice
)
"""Messages that the engine process sends."""


def encode(message: EngineMessage, bytes_max: int) -> bytes:
    """Return the frame of ``message``; raises ``WireError`` if it is too long or not encodable."""
    body = _packed([type(message).__name__, dict(message)], type(message).__name__)
    if len(body) > bytes_max:
        raise WireError(f"a {type(message).__name__} of {len(body)} bytes is too long")
    frame: bytes = len(body).to_bytes(_LENGTH_BYTES, "big") + body
    return frame


def call_parts(call: int, elements: Iterable[object]) -> Iterator[bytes]:
    """Yield the frames of a call's long argument; raises ``WireError`` as ``encode``."""
    packed: list[bytes] = []
    packed_bytes = 0
    for element in elements:
        one = _packed(element, CallPart.__name__)
        if packed and packed_bytes + len(one) > PART_BYTES:
            yield encode(CallPart(id=call, elements=tuple(packed)), QUESTION_BYTES_MAX)
            packed, packed_bytes = [], 0
        packed.append(one)
        packed_bytes += len(one)
    if packed:
        yield encode(CallPart(id=call, elements=tuple(packed)), QUESTION_BYTES_MAX)


def _packed(value: object, name: str) -> bytes:
    try:
        packed: bytes = msgpack.packb(value, default=_plain)
    except ValueError as error:  # a path that is not valid text
        raise WireError(f"a {name} cannot be written: {error}") from None
    return packed


def unpacked(data: bytes) -> Any:
    """Decode an element of a ``CallPart``; raises ``ValueError``."""
    codec.require_whole(data)
    return msgpack.unpackb(data, use_list=False)


def _plain(value: object) -> object:
    """Convert a path or a data class of the ports for msgpack.

    The fields are mostly tuples of numbers, which msgpack encodes 7 times faster than pydantic
    (measured).
    """
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return str(value)


def decode(body: bytes, known: Mapping[str, type[EngineMessage]]) -> EngineMessage:
    """Decode a frame's body; raises ``WireError`` unless the message is one of ``known``."""
    try:
        match unpacked(body):
            case (str(name), dict(values)) if name in known:
                return known[name].model_validate(values)
    except ValueError as error:  # the base of msgpack's and pydantic's errors
        raise WireError(" ".join(str(error).split())[:200]) from None
    raise WireError("unknown message")


async def read(
    reader: asyncio.StreamReader, known: Mapping[str, type[EngineMessage]], bytes_max: int
) -> EngineMessage:
    """Read the next message; ``EOFError`` at the end of the stream, else as ``decode``."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > bytes_max:
        raise WireError(f"a frame of {length} bytes is too long")
    return decode(await reader.readexactly(length), known)
