"""A reader of what travels, written from ``docs/protocol.md`` alone: it imports nothing of ours.

It is strict and slow, and raises ``Refused`` for whatever the page says is refused.
"""

import math
import struct
from typing import Any

import base58
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PEER_ID_PREFIX = bytes.fromhex("002408011220")
DOMAIN = b"prime-node/1"


class Refused(Exception):  # noqa: N818 - it is what the page calls it
    """Bytes that a node must not act on."""


def require(holds: bool, why: str) -> None:
    if not holds:
        raise Refused(why)


def digest(*parts: bytes) -> bytes:
    return blake3(b"".join(parts)).digest()


# Section 2: canonical MessagePack


class Reader:
    """Reads bytes from the front; also the frames of section 13."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        require(self.at + count <= len(self.data), "cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def frame(self, length_bytes: int) -> bytes:
        return self.take(self.number(length_bytes))

    @property
    def ended(self) -> bool:
        return self.at == len(self.data)

    def shortest(self, widths: tuple[int, ...], width: int, least: int) -> int:
        """Return a length that no shorter form than ``width`` bytes could have told."""
        length = self.number(width)
        smaller = widths[: widths.index(width)]
        require(length >= (1 << 8 * smaller[-1] if smaller else least), "not the shortest form")
        return length

    def value(self, level: int = 1) -> Any:
        head = self.number(1)
        if head <= 0x7F:
            return head
        if head <= 0x8F or head in (0xDE, 0xDF):
            return self.map(self.count(head, 0x80, 0xDE), level)
        if head <= 0x9F or head in (0xDC, 0xDD):
            count = self.count(head, 0x90, 0xDC)
            require(count == 0 or level <= 15, "nested too deep")
            require(level <= 16, "nested too deep")
            return [self.value(level + 1) for _ in range(count)]
        if head <= 0xBF or 0xD9 <= head <= 0xDB:
            widths = (1, 2, 4)
            length = head - 0xA0
            if head > 0xBF:
                length = self.shortest(widths, widths[head - 0xD9], 32)
            return self.text(length)
        if 0xC4 <= head <= 0xC6:
            widths = (1, 2, 4)
            return self.take(self.shortest(widths, widths[head - 0xC4], 0))
        return self.scalar(head)

    def count(self, head: int, short: int, long: int) -> int:
        return head - short if head < long else self.shortest((2, 4), 2 << (head - long), 16)

    def text(self, length: int) -> str:
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise Refused("not UTF-8") from error

    def map(self, count: int, level: int) -> dict[str, Any]:
        require(count == 0 or level <= 15, "nested too deep")
        require(level <= 16, "nested too deep")
        found: dict[str, Any] = {}
        last = None
        for _ in range(count):
            key = self.value(17)
            require(isinstance(key, str), "a key is not text")
            require(last is None or last.encode() < key.encode(), "keys are not in order")
            found[key], last = self.value(level + 1), key
        return found

    def scalar(self, head: int) -> Any:
        if head in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[head]
        if head == 0xCB:
            (number,) = struct.unpack(">d", self.take(8))
            require(math.isfinite(number), "not finite")
            return number
        if 0xCC <= head <= 0xCF:
            widths = (1, 2, 4, 8)
            return self.shortest(widths, widths[head - 0xCC], 0x80)
        if 0xD0 <= head <= 0xD3:
            width = 1 << (head - 0xD0)
            number = int.from_bytes(self.take(width), "big", signed=True)
            least = -32 if width == 1 else -(1 << 4 * width - 1)
            require(number < least, "not the shortest form")
            return number
        if head >= 0xE0:
            return head - 256
        raise Refused(f"no value begins with {head:02x}")


def canonical(data: bytes) -> Any:
    """Return the value that all of ``data`` spells."""
    reader = Reader(data)
    value = reader.value()
    require(reader.ended, "something follows")
    return value


# Sections 1 and 3: keys, signatures, message ids


def key_of(peer_id: str) -> bytes:
    """Return the public key in a peer id."""
    raw = base58.b58decode(peer_id)
    require(len(raw) == 38 and raw.startswith(PEER_ID_PREFIX), "not an Ed25519 peer id")
    require(base58.b58encode(raw).decode() == peer_id, "another spelling")
    return raw[len(PEER_ID_PREFIX) :]


def verify(peer_id: str, message: bytes, signature: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(key_of(peer_id)).verify(signature, message)
    except InvalidSignature as error:
        raise Refused("bad signature") from error


def domain(kind: str, run_id: bytes) -> bytes:
    return DOMAIN + bytes([len(kind)]) + kind.encode() + run_id


def opened(data: bytes, run_id: bytes, bytes_max: int = 16384) -> tuple[str, str, bytes, Any]:
    """Return kind, signer, message id and fields of a good envelope."""
    require(len(data) <= bytes_max, "too large")
    outer = canonical(data)
    require(isinstance(outer, dict), "not a map")
    require(list(outer) == ["kind", "payload", "signature", "signer"], "other keys")
    kind, payload, signer = outer["kind"], outer["payload"], outer["signer"]
    fields = canonical(payload)
    verify(signer, domain(kind, run_id) + payload, outer["signature"])
    return kind, signer, digest(domain(kind, run_id), signer.encode(), payload), fields


# Section 12: varints and protobufs


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the LEB128 number at a place, and the place after it."""
    value = shift = 0
    while True:
        require(at < len(data), "cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def rpcs(data: bytes) -> list[bytes]:
    """Cut what one side wrote on its gossip stream into RPCs."""
    found, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        require(length <= 1 << 20 and at + length <= len(data), "no frame")
        found.append(data[at : at + length])
        at += length
    return found


def protobuf(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a protobuf by number; those with a length as bytes."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        require(tag & 7 in (0, 2), "another wire type")
        if tag & 7 == 2:
            require(at + value <= len(data), "cut off")
            fields.setdefault(tag >> 3, []).append(data[at : at + value])
            at += value
        else:
            fields.setdefault(tag >> 3, []).append(value)
    return fields


# Section 14: the forest

Member = tuple[str, int, bool]
"""Peer id, upload in bytes a second, whether it can be reached."""


def parents(
    members: list[Member], root: str, version: bytes, stripe: int, stripes: int, fanout: int
) -> dict[str, str]:
    """Return child -> parent of one stripe."""
    others = {peer: (upload, there) for peer, upload, there in members if peer != root}
    count, salt = len(others), version + stripe.to_bytes(4, "big")
    reachable = sorted(
        (peer for peer, (_, there) in others.items() if there),
        key=lambda peer: (-others[peer][0], digest(version, peer.encode())),
    )
    needed = max(1, math.ceil((count - 1) / fanout))
    inner = reachable[stripe % len(reachable) :: stripes][:needed] if reachable else []
    rest = sorted(set(others) - set(inner), key=lambda peer: digest(salt, peer.encode()))
    degrees = dict.fromkeys(inner, 0)
    most = max(2 * max(fanout, stripes), math.ceil(count / (len(inner) + 1)))
    for _ in range(count - 1):
        free = [peer for peer in inner if degrees[peer] < most]
        if free:
            loads = [(degrees[peer] + 1) / max(1, others[peer][0]) for peer in free]
            degrees[free[loads.index(min(loads))]] += 1
    feeders = [root] * max(1, count - sum(degrees.values()))
    for peer in inner:
        feeders += [peer] * degrees[peer]
    return dict(zip([*inner, *rest], feeders, strict=False))
