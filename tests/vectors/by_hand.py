"""Reader of the wire formats, written from ``docs/protocol.md`` alone, without project imports.

It is strict and slow, and raises ``Refused`` for all input that the page refuses.
"""

import json
import math
import struct
from typing import Any

import base58
import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PEER_ID_PREFIX = bytes.fromhex("002408011220")
DOMAIN = b"prime-node/2"


class Refused(Exception):  # noqa: N818 - it is what the page calls it
    """Bytes that a node must not act on."""


def require(holds: bool, why: str) -> None:
    if not holds:
        raise Refused(why)


def digest(*parts: bytes) -> bytes:
    return blake3(b"".join(parts)).digest()


# Section 2: canonical MessagePack


class Reader:
    """Reads bytes from the front, including the frames of section 13."""

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
        """Return a length, and refuse a ``width`` that is not the shortest."""
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
    """Return the value that ``data`` encodes as a whole."""
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
    """Return kind, signer, message id and fields of a valid envelope."""
    require(len(data) <= bytes_max, "too large")
    outer = canonical(data)
    require(isinstance(outer, dict), "not a map")
    require(list(outer) == ["kind", "payload", "signature", "signer"], "other keys")
    kind, payload, signer = outer["kind"], outer["payload"], outer["signer"]
    fields = canonical(payload)
    verify(signer, domain(kind, run_id) + payload, outer["signature"])
    return kind, signer, digest(domain(kind, run_id), signer.encode(), payload), fields


# Section 6: encodings of weights


class Encoded:
    """Reads an encoding from the front: little-endian numbers, and bits from the highest."""

    def __init__(self, data: bytes) -> None:
        self.reader = Reader(data)

    def number(self) -> int:
        return int.from_bytes(self.reader.take(4), "little")

    def plane(self, count: int) -> bytes:
        kind = self.reader.number(1)
        if kind == 0:
            return bytes(count)
        if kind == 1:
            return self.reader.take(count)
        if kind == 2:
            plane = zstandard.decompress(self.reader.take(self.number()))
            require(len(plane) == count, "a plane of another length")
            return plane
        require(kind == 3 and count >= 64, "another kind of plane")
        meant = bits_of(self.plane(-(-count // 8)))
        require(not any(meant[count:]) and 2 * sum(meant) < count, "too many bytes")
        others = iter(self.plane(sum(meant)))
        return bytes(next(others) if bit else 0 for bit in meant[:count])

    def planes(self, count: int, width: int) -> list[int]:
        planes = [self.plane(count) for _ in range(width)]
        return [int.from_bytes(octets, "little") for octets in zip(*planes, strict=True)]

    def patched(self, old: list[int], width: int) -> list[int]:
        told = bits_of(self.plane(-(-len(old) // 4)))
        steps = [2 * upper + lower for upper, lower in zip(told[::2], told[1::2], strict=True)]
        require(not any(steps[len(old) :]), "steps beyond the block")
        farther = iter(self.differences(steps.count(2), width))
        known = {0: 0, 1: -1, 3: 1}
        return [
            (word + (next(farther) if step == 2 else known[step])) % 256**width
            for word, step in zip(old, steps, strict=False)
        ]

    def differences(self, count: int, width: int) -> list[int]:
        middle = int.from_bytes(b"\x80" * width, "little")
        return [(number ^ middle) - middle for number in self.planes(count, width)]

    def moved(self, old: list[int], width: int) -> list[int]:
        by = self.differences(len(old), width)
        return [(word + step) % 256**width for word, step in zip(old, by, strict=True)]


def bits_of(data: bytes) -> list[int]:
    return [byte >> 7 - place & 1 for byte in data for place in range(8)]


def runs_in(file: bytes, header: bytes) -> list[tuple[int, list[int]]]:
    """Return (element width, element count) of each separately split run, in the file's order."""
    table = json.loads(header[8:])
    data = file[len(header) :]
    runs: list[tuple[int, list[int]]] = []
    for entry in sorted(table.values(), key=lambda entry: entry["data_offsets"]):
        begin, end = entry["data_offsets"]
        width = {"F32": 4, "BF16": 2, "U8": 1}[entry["dtype"]]
        if not runs or runs[-1][0] != width:
            runs.append((width, []))
        words = [data[at : at + width] for at in range(begin, end, width)]
        runs[-1][1].extend(int.from_bytes(word, "little") for word in words)
    return runs


def decoded_weights(encoding: bytes, base: bytes = b"", policy: bytes = b"") -> bytes:
    """Return the decoded file, of a base with this policy digest if there is one."""
    data = Encoded(encoding)
    preamble = canonical(data.reader.take(data.number()))
    require(preamble["base"] == policy, "another base")
    header = preamble["header"] or base[: 8 + int.from_bytes(base[:8], "little")]
    size = max(entry["data_offsets"][1] for entry in json.loads(header[8:]).values())
    out = header
    for width, words in runs_in(base or header + bytes(size), header):
        elements = preamble["block_bytes"] // width
        for at in range(0, len(words), elements):
            old = words[at : at + elements]
            kind, length = data.reader.number(1), data.number()
            ends = data.reader.at + length
            if kind == 0:
                new = old
            elif kind == 1:
                new = data.patched(old, width)
            elif kind == 2:
                new = data.planes(len(old), width)
            else:
                require(kind == 3, "another kind")
                new = data.moved(old, width)
            require(data.reader.at == ends, "a block of another length")
            out += b"".join(word.to_bytes(width, "little") for word in new)
    require(data.reader.ended, "something follows")
    return out


# Section 12: varints and protobufs


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the LEB128 number at an offset, and the offset after it."""
    value = shift = 0
    while True:
        require(at < len(data), "cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def rpcs(data: bytes) -> list[bytes]:
    """Split the bytes of one gossip stream direction into RPCs."""
    found, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        require(length <= 1 << 20 and at + length <= len(data), "no frame")
        found.append(data[at : at + length])
        at += length
    return found


def protobuf(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a protobuf by number; length-delimited ones as bytes."""
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

Member = tuple[str, int, bool, bool]
"""Peer id, upload in bytes a second, reachable, and with reputation."""


def words(salt: bytes, peer: str, count: int) -> list[int]:
    """Return the first 64-bit numbers of a hash."""
    stream = blake3(salt + peer.encode()).digest(length=8 * count)
    return [int.from_bytes(stream[at : at + 8], "big") for at in range(0, 8 * count, 8)]


def whole_class(rate: int) -> int:
    """Return the minimum rate in the class of a rate."""
    number = math.floor(2 * math.log2(max(1, rate)) + 1e-12)
    return math.ceil(2 ** (number / 2) - 1e-9)


def who_feeds(members: list[Member], root: str, version: bytes) -> list[tuple[str, int]]:
    """Return the eligible inner nodes with the minimum rate of their class, in the page's order."""
    there = {peer: (upload, trusted) for peer, upload, able, trusted in members if able}
    there.pop(root, None)
    drawn = {peer: words(version, peer, 2) for peer in there}
    trusted = [peer for peer in there if there[peer][1]]
    new = sorted((peer for peer in there if not there[peer][1]), key=lambda peer: drawn[peer])
    rates = sorted(there[peer][0] for peer in trusted)
    most = rates[3 * (len(rates) - 1) // 4] if rates else 0
    counted = {peer: whole_class(there[peer][0]) for peer in trusted}
    for peer in new[: max(1, len(trusted) // 4)]:
        counted[peer] = whole_class(min(there[peer][0], most))
    return sorted(
        counted.items(), key=lambda item: (-item[1], not there[item[0]][1], drawn[item[0]])
    )


def stripe_of_each(feeding: list[tuple[str, int]], version: bytes, stripes: int) -> list[int]:
    """Return the stripe in which each node is inner."""
    dealt: list[int] = []
    for place, (peer, _) in enumerate(feeding):
        total = len(feeding)
        most = place // stripes
        if total > 64:
            most = min(most + math.isqrt(total), math.ceil(total / stripes) - 1)
        stripe = words(version, peer, 2)[1] % stripes
        while dealt.count(stripe) > most:
            stripe = (stripe + 1) % stripes
        dealt.append(stripe)
    return dealt


def seats_of_each(salt: bytes, inner: list[tuple[str, int]], count: int, most: int) -> list[int]:
    """Return the number of seats of each inner node."""
    lots = [words(salt, peer, 2)[1] for peer, _ in inner]
    seats = [0] * len(inner)
    for _ in range(count):
        free = [place for place in range(len(inner)) if seats[place] < most]
        if free:
            seats[min(free, key=lambda at: ((seats[at] + 1) / inner[at][1], lots[at]))] += 1
    return seats


def parents(
    members: list[Member], root: str, version: bytes, stripe: int, stripes: int, fanout: int
) -> dict[str, str]:
    """Return child -> parent of one stripe."""
    feeding = who_feeds(members, root, version)
    placed = {peer for peer, _ in feeding} | {peer for peer, *_, trusted in members if trusted}
    others = list(dict.fromkeys(peer for peer, *_ in members if peer in placed - {root}))
    count, salt = len(others), version + stripe.to_bytes(4, "big")
    dealt = stripe_of_each(feeding, version, stripes)
    line = [item for item, number in zip(feeding, dealt, strict=True) if number == stripe]
    if not line and feeding:
        line = [feeding[stripe % len(feeding)]]
    inner = line[: max(1, math.ceil((count - 1) / fanout))]
    most = max(2 * max(fanout, stripes), math.ceil(count / (len(inner) + 1)))
    seats = seats_of_each(salt, inner, count - 1, most)
    drawn = [words(salt, peer, 8 + most) for peer, _ in inner]
    circle = sorted(
        (point, place) for place, many in enumerate(seats) for point in drawn[place][8 : 8 + many]
    )
    free: set[int] = set()
    fed: dict[str, str] = {}
    by_root = max(1, count - sum(seats))

    def after(point: int) -> list[int]:
        """Return all seats in their order from a point."""
        order = range(len(circle))
        return sorted(order, key=lambda seat: (circle[seat][0] < point, seat))

    def take(seat: int | None) -> str:
        free.discard(-1 if seat is None else seat)
        return root if seat is None else inner[circle[seat][1]][0]

    for place, (peer, _) in enumerate(inner):
        found = [
            next((at for at in after(point) if at in free), None) for point in drawn[place][2:8]
        ]
        seen = [at for at in found if at is not None]
        best = min(seen, key=lambda at: (circle[at][1], at), default=None)
        fed[peer] = root if place < by_root else take(best)
        free |= {at for at, (_, owner) in enumerate(circle) if owner == place}
    for _, _, *points, peer in sorted((*words(salt, p, 8), p) for p in set(others) - set(fed)):
        looks = [after(point)[0] for point in points] if circle else []
        direct = next((at for at in looks if at in free), None)
        walked = next((at for at in after(points[0]) if at in free), None)
        fed[peer] = root if len(fed) < by_root else take(walked if direct is None else direct)
    return fed
