"""Mutations of bytes, and of the values that they encode."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 1023, 1024, 4096),
    *(65_535, 65_536, 65_497, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**38, 2**40),
    *(2**40 + 1, 2**48 - 1, 2**53, 2**53 + 1),
    *(2**63 - 1, 2**63, 2**64 - 1, -1, -2, -32, -33, -128, -(2**31), -(2**53), -(2**63)),
)
TEXTS = (
    *("", "\0", "a", "é", "\u2028", "/", "../..", "%s", "-1", "nan", "relay", "validator"),
    *("x" * 199, "x" * 200, "x" * 201, "\U0001f600" * 70, "/ip4/127.0.0.1/tcp/1/p2p/", "[::1]"),
    *("/ip4/256.1.1.1/tcp/99999", "/ip6/::1/tcp/0", "accepted", "reward", "1" * 60),
)
OTHERS = (None, True, False, 0, -1, 0.0, -0.0, 1e308, 5e-324, "", b"", (), {}, b"\0" * 32, ((),))


def mutated_bytes(data: bytes, rng: Random, others: Sequence[bytes], bytes_max: int) -> bytes:
    """Return ``data`` after one to four changes."""
    changed = bytearray(data)
    for _ in range(1 + int(rng.random() * rng.random() * 4)):
        rng.choice(_BYTE_CHANGES)(changed, rng, others)
    return bytes(changed[:bytes_max])


def _flip(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _remove(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + 1 + int(rng.random() ** 3 * 64)]


def _insert(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.randbytes(1 + int(rng.random() ** 3 * 64))


def _repeat(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + 1 + int(rng.random() ** 2 * 256)]
    data[start:start] = part * (1 + int(rng.random() ** 6 * 200))


def _number(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    """Write a false length."""
    if data:
        start, width = rng.randrange(len(data)), rng.choice((1, 2, 4, 8))
        number = rng.choice(NUMBERS) % (1 << 8 * width)
        data[start : start + width] = number.to_bytes(width, rng.choice(("big", "little")))


def _splice(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    start = rng.randrange(len(data) + 1)
    data[start:] = other[rng.randrange(len(other) + 1) :]


def _random(data: bytearray, rng: Random, _others: Sequence[bytes]) -> None:
    if rng.random() < 0.2:
        data[:] = rng.randbytes(int(rng.random() ** 3 * 512))
    else:
        start = rng.randrange(len(data) + 1)
        count = 1 + int(rng.random() * 8)
        data[start : start + count] = rng.randbytes(count)


_BYTE_CHANGES = (
    _flip,
    _flip,
    _set,
    _set,
    _cut,
    _remove,
    _insert,
    _repeat,
    _number,
    _splice,
    _random,
)


class Values:
    """Mutates values; ``known`` are values that others refer to, such as digests."""

    def __init__(self, known: Sequence[Any] = ()) -> None:
        self._known = list(known)
        self.inner: Callable[[bytes, Random], bytes] | None = None
        """Mutates bytes that are an encoding themselves."""

    def changed(self, value: Any, rng: Random) -> Any:
        """Return ``value`` after one to three changes; it stays encodable."""
        for _ in range(1 + int(rng.random() * rng.random() * 3)):
            value = self._somewhere(value, rng)
        return value

    def _somewhere(self, value: Any, rng: Random) -> Any:
        """Change a part, or the whole."""
        if isinstance(value, dict) and value and rng.random() < 0.9:
            key = rng.choice(list(value))
            return {**value, key: self._somewhere(value[key], rng)}
        if isinstance(value, tuple | list) and value and rng.random() < 0.7:
            place = rng.randrange(len(value))
            return (*value[:place], self._somewhere(value[place], rng), *value[place + 1 :])
        return self._other(value, rng)

    def _other(self, value: Any, rng: Random) -> Any:
        if rng.random() < 0.06:
            return rng.choice(OTHERS)
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            near = value + rng.choice((-1, 1, -2, 16, 1000))
            known = [item for item in self._known if type(item) is int]
            return rng.choice((near, rng.choice(NUMBERS), rng.choice(known or [0])))
        if isinstance(value, float):
            return rng.choice((-value, value * 2, 0.0, 1e-300, 1e300, value + 1, float(2**53)))
        if isinstance(value, str):
            cut = value[: rng.randrange(len(value) + 1)]
            return rng.choice((cut, value * 2, value + "\0", rng.choice(TEXTS), value.upper()))
        if isinstance(value, bytes):
            return self._other_bytes(value, rng)
        if isinstance(value, dict):
            return self._other_map(value, rng)
        if isinstance(value, tuple | list):
            return self._other_row(tuple(value), rng)
        return rng.choice(OTHERS)

    def _other_bytes(self, value: bytes, rng: Random) -> bytes:
        choice = rng.random()
        if self.inner is not None and len(value) > 64 and choice < 0.7:
            return self.inner(value, rng)
        known = [item for item in self._known if type(item) is bytes]
        if known and choice < 0.4:
            return rng.choice(known)
        return mutated_bytes(value, rng, known or [b"\0"], 4096)

    def _other_map(self, value: dict[str, Any], rng: Random) -> dict[str, Any]:
        changed = dict(value)
        if value and rng.random() < 0.5:
            del changed[rng.choice(list(value))]
        else:
            changed[rng.choice((*TEXTS, *value, "kind"))] = rng.choice(OTHERS)
        return changed

    def _other_row(self, value: tuple[Any, ...], rng: Random) -> tuple[Any, ...]:
        choice = rng.random()
        if choice < 0.3 and value:
            return value * rng.choice((2, 3, 16, 64))
        if choice < 0.5:
            return value[: rng.randrange(len(value) + 1)]
        if choice < 0.7:
            return value[::-1]
        return (*value, rng.choice((*OTHERS, *(value or (0,)))))
