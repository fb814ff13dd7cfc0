"""Encoding and decoding of weight files, a few blocks at a time.

Only the page cache holds the files in memory, and the kernel can reclaim it.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from blake3 import blake3

from protocol.core.types import Digest
from protocol.shardcast.encodings import stream
from protocol.shardcast.encodings.stream import (
    Base,
    ByteReader,
    InOrder,
    ItemT,
    ResultT,
    StreamDecoder,
)
from protocol.shardcast.encodings.tensor_file import EncodingError
from protocol.shardcast.movement_bound import ExcessiveMovement, MovementBound
from roles.ports.engines import Policy

THREADS = min(8, max(1, (os.cpu_count() or 1) // 2))
"""Half of the cores, for other work runs beside. At most 8, for each thread holds a block: 10 MB of
ours, at most 25 MB. Two are 1.5 times as fast as one (``benchmarks/shardcast/threads.py``)."""

_FREED_BYTES = 31 << 20
"""glibc's dynamic mmap threshold grows to at most 32 MiB."""


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads that code blocks, always the same ones: each keeps its memory.

    glibc keeps freed memory per thread, and returns it to the kernel beyond twice the largest piece
    freed so far. Pages of large arrays would be mapped, zeroed and dropped in every step of every
    block: half of float32's time. So one large untouched piece is freed first.
    """
    np.empty(_FREED_BYTES, np.uint8)
    return ThreadPoolExecutor(THREADS, "encodings")


@contextmanager
def in_threads() -> Iterator[InOrder]:
    """Process ``THREADS`` blocks at once; NumPy, zstd and file reads release the GIL.

    At the end no thread works any more, so the inputs of the blocks may be closed.
    """
    waiting: deque[Future[Any]] = deque()

    def in_order(
        function: Callable[[ItemT], ResultT], items: Iterable[ItemT], /
    ) -> Iterator[ResultT]:
        for item in items:
            waiting.append(_pool().submit(function, item))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield in_order
    finally:
        wait(waiting)


@contextmanager
def opened(path: Path) -> Iterator[ByteReader]:
    """Open a weight file; raises ``EncodingError`` when it is incomplete."""
    with path.open("rb") as file:
        descriptor = file.fileno()

        def read(offset: int, length: int) -> bytes:
            data = os.pread(descriptor, length, offset)
            if len(data) != length:
                raise EncodingError(f"{path} ends early")
            return data

        yield stream.source_of(read, os.fstat(descriptor).st_size)


@contextmanager
def opened_base(base: Policy | None) -> Iterator[Base | None]:
    """Open the file of a base, if any."""
    if base is None:
        yield None
        return
    with opened(base.path) as source:
        yield Base(base.digest, source)


def encode(path: Path, base: Policy | None, target: Path) -> Digest | None:
    """Write the encoding of a file; return its BLAKE3, None when the base does not fit."""
    with opened(path) as source, opened_base(base) as against, in_threads() as in_order:
        if against is not None and against.source.layout.header != source.layout.header:
            return None
        hasher = blake3()
        target.unlink(missing_ok=True)  # may be published by now: never overwritten
        with target.open("wb") as file:
            for block in stream.encode(source, against, in_order=in_order):
                hasher.update(block)
                file.write(block)
        return Digest(hasher.digest())


def excess_of(path: Path, base: Policy, bound: MovementBound) -> ExcessiveMovement | None:
    """Return the movement of a file from its base that exceeds its bound most, if any does.

    Raises ``EncodingError`` unless the file of ``base`` holds it.
    """
    with opened(base.path) as before:
        try:
            with opened(path) as after:
                excess = stream.excess_of(after, before, bound)
        except EncodingError:
            excess = ExcessiveMovement("", math.inf)
    if excess is not None:
        check_base(base)
    return excess


def check_base(base: Policy) -> None:
    """Raise ``EncodingError`` unless a file holds its policy."""
    with opened(base.path) as source:
        if stream.policy_of(source) != base.digest:
            raise EncodingError(f"{base.path} is damaged")


class DecodingFile:
    """Decoder of an encoding into a file; one thread at a time, and always closed.

    ``bound`` is that on the movement of a weight from the base.
    """

    def __init__(
        self,
        base: Policy | None,
        path: Path,
        file_bytes_max: int,
        bound: MovementBound | None = None,
    ) -> None:
        self._base = base
        self._bound = bound
        self._path = path
        self._file_bytes_max = file_bytes_max
        self._open = ExitStack()
        self._begun: tuple[StreamDecoder, BinaryIO] | None = None
        self._hasher = blake3()

    def feed(self, data: bytes) -> None:
        """Decode the next bytes of the encoding."""
        decoder, file = self._begun or self._begin()
        self._hasher.update(data)
        for part in decoder.feed(data):
            file.write(part)

    def finish(self) -> Digest:
        """Sync the file; return the digest of its policy."""
        decoder, file = self._begun or self._begin()
        policy = decoder.policy
        file.flush()
        os.fsync(file.fileno())
        return policy

    @property
    def excess(self) -> ExcessiveMovement | None:
        """Movement so far that exceeds its bound most."""
        return None if self._begun is None else self._begun[0].excess

    @property
    def encoding(self) -> Digest:
        """The BLAKE3 of the bytes fed."""
        return Digest(self._hasher.digest())

    def close(self) -> None:
        """Close the files; idempotent."""
        self._open.close()

    def _begin(self) -> tuple[StreamDecoder, BinaryIO]:
        against = self._open.enter_context(opened_base(self._base))
        file = self._open.enter_context(self._path.open("wb"))
        in_order = self._open.enter_context(in_threads())
        decoder = StreamDecoder(against, self._file_bytes_max, in_order, self._bound)
        self._begun = decoder, file
        return self._begun
