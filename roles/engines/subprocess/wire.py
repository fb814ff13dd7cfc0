"""What a daemon and its engine process say to each other: framed msgpack, every message bounded.

A frame is four bytes of length, big-endian, and ``[name of the message, its fields]``. The engine
process speaks first, with the version of this module, because it may be of another installation.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgpack
from pydantic import BaseModel, ConfigDict, Field

from protocol.core import codec
from protocol.run.manifest import MANIFEST_BYTES_MAX
from roles.engines.factory import EngineName
from roles.ports.storage import StorageFullError

VERSION = 5
"""To be raised with any change to a message here or to a type in ``methods``."""

QUESTION_BYTES_MAX = 1 << 30
"""A step's batch of 16 million tokens takes 20 bytes each."""

ANSWER_BYTES_MAX = 1 << 26
"""One sequence travels in one frame: a million tokens at 20 bytes, and their proofs."""

_LENGTH_BYTES = 4
_ANSWERING_MAX = 1 << 62

CallId = Annotated[int, Field(ge=1, le=_ANSWERING_MAX)]
Kind = Literal["generation", "verification", "training"]
"""The engines that a process may be asked to make, named like the methods of ``Engines``."""

ErrorName = Literal["ValueError", "LookupError", "StorageFullError", "EngineError"]
"""What the ports document; everything else is an ``EngineError``."""

TOLD: Mapping[ErrorName, type[Exception]] = {
    "ValueError": ValueError,
    "LookupError": LookupError,
    "StorageFullError": StorageFullError,
}
"""What those that are no ``EngineError`` are here."""

REASON_CHARACTERS_MAX = 1000
TRACE_CHARACTERS_MAX = 8000


class WireError(Exception):
    """The other side says what nobody may say."""


class EngineMessage(BaseModel):
    """What travels in one frame."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hello(EngineMessage):
    """The engine process is here; nothing else is understood before the versions are equal."""

    version: Annotated[int, Field(ge=0, le=2**31)]
    software: Annotated[str, Field(max_length=100)]


class Make(EngineMessage):
    """Make the one engine of this process.

    ``manifest`` is the canonical run manifest; ``engine``, ``device`` and ``gpus`` are as
    ``engines_of`` takes them.
    """

    kind: Kind
    engine: EngineName
    manifest: Annotated[bytes, Field(max_length=MANIFEST_BYTES_MAX)]
    device: Annotated[str, Field(max_length=100)]
    gpus: Annotated[int, Field(ge=1, le=1024)]
    memory_bytes_max: Annotated[int, Field(ge=1)] | None
    heartbeat_seconds: Annotated[float, Field(gt=0, le=3600)]


class Call(EngineMessage):
    """Call a method of the engine; ``arguments`` are checked by ``methods``."""

    id: CallId
    method: Annotated[str, Field(max_length=100)]
    arguments: tuple[Any, ...]


class CancelCall(EngineMessage):
    """Nobody waits for a call any more: it need not go on."""

    id: CallId


class Made(EngineMessage):
    """The engine is there."""


class Item(EngineMessage):
    """A part of a call's result, in order; ``value`` is checked by ``methods``."""

    id: CallId
    value: Any


class CallDone(EngineMessage):
    """A call has ended well."""

    id: CallId


class Failed(EngineMessage):
    """A call has raised; ``id`` is None when the engine could not be made."""

    id: CallId | None
    error: ErrorName
    reason: Annotated[str, Field(max_length=REASON_CHARACTERS_MAX)]
    trace: Annotated[str, Field(max_length=TRACE_CHARACTERS_MAX)]


class Heartbeat(EngineMessage):
    """The process lives: its resident memory, and the tokens computed since its start."""

    memory_bytes: Annotated[int, Field(ge=0)]
    tokens: Annotated[int, Field(ge=0)]


class FirstTokenNotice(EngineMessage):
    """A policy that was loaded had its first token so many seconds after its load."""

    version: Annotated[int, Field(ge=0, le=_ANSWERING_MAX)]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


M = TypeVar("M", bound=EngineMessage)


def _named(*messages: type[M]) -> Mapping[str, type[M]]:
    return {message.__name__: message for message in messages}


QUESTIONS: Mapping[str, type[EngineMessage]] = _named(Make, Call, CancelCall)
"""What the daemon says."""

ANSWERS: Mapping[str, type[EngineMessage]] = _named(
    Hello, Made, Item, CallDone, Failed, Heartbeat, FirstTokenNotice
)
"""What the engine process says."""


def encode(message: EngineMessage, bytes_max: int) -> bytes:
    """Return the frame of ``message``; raises ``WireError`` when it is too long, or unwritable."""
    try:
        body = msgpack.packb([type(message).__name__, dict(message)], default=_plain)
    except ValueError as error:  # a path that is no text
        raise WireError(f"a {type(message).__name__} cannot be written: {error}") from None
    if len(body) > bytes_max:
        raise WireError(f"a {type(message).__name__} of {len(body)} bytes is too long")
    frame: bytes = len(body).to_bytes(_LENGTH_BYTES, "big") + body
    return frame


def _plain(value: object) -> object:
    """Return what msgpack knows for a path or one of the ports' data classes.

    Their fields are mostly tuples of numbers, which it writes 7 times faster than pydantic would
    (measured).
    """
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return str(value)


def decode(body: bytes, known: Mapping[str, type[EngineMessage]]) -> EngineMessage:
    """Return the message in a frame's body; raises ``WireError`` unless it is one of ``known``."""
    try:
        codec.require_whole(body)
        match msgpack.unpackb(body, use_list=False):
            case (str(name), dict(values)) if name in known:
                return known[name].model_validate(values)
    except ValueError as error:  # msgpack's and pydantic's errors are
        raise WireError(" ".join(str(error).split())[:200]) from None
    raise WireError("not a message of this side")


async def read(
    reader: asyncio.StreamReader, known: Mapping[str, type[EngineMessage]], bytes_max: int
) -> EngineMessage:
    """Return the next message; ``EOFError`` at the end of the stream, else as ``decode``."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > bytes_max:
        raise WireError(f"a frame of {length} bytes is too long")
    return decode(await reader.readexactly(length), known)
