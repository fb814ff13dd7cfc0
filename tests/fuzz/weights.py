"""Decoders of files fetched by digest: indexes, encodings of weights, rollouts, proofs."""

import json
from random import Random
from typing import Any

import numpy as np

from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.rollout.audit import check_claims, read_body
from protocol.rollout.body import RolloutSequence, encode_body
from protocol.shardcast import index as shard_index
from protocol.shardcast.encodings import block, framing, stream, tensor_file
from protocol.shardcast.encodings.stream import Base, PatchReader, StreamDecoder
from protocol.shardcast.encodings.tensor_file import EncodingError
from protocol.toploc.layout import ProofLayout, Variant
from protocol.toploc.proof import build_proofs_batch, proof_fault, verify_proofs_batch
from tests.fuzz.documents import packed
from tests.fuzz.mutation import Values, mutated_bytes
from tests.fuzz.target import BrokenBoundError, Decoder, Target
from tests.vectors import made
from tests.worlds.messages import run_manifest

FILE_BYTES_MAX = 64 << 20
"""Limit of a decoded file, here; a node's limit is the signed size."""

_PIECES = (1, 7, 100, 4096, 1 << 20)


def _index() -> Decoder:
    value = {
        "total_bytes": made.index().total_bytes,
        "shard_bytes": made.index().shard_bytes,
        "chunk_bytes": made.index().chunk_bytes,
        "shards": [[one.digest, b"".join(one.chunks)] for one in made.index().shards],
    }

    def read(data: bytes) -> bool:
        index = shard_index.decode(data)
        if not isinstance(index, Fault) and shard_index.encode(index) != data:
            raise BrokenBoundError("an index that is spelt otherwise")
        return not isinstance(index, Fault)

    change = Values([1, 1 << 20, 1 << 40, bytes(32)])
    return Decoder([made.INDEX], read, remake=[lambda rng: packed(change.changed(value, rng))])


# Encodings


def _base() -> tuple[Base, dict[str, bytes]]:
    files = made.encodings()
    first = files["first"]
    source = stream.source_of(lambda at, length: first[at : at + length], len(first))
    return Base(digest(b"first"), source), files


def _cut_into_pieces(data: bytes) -> list[bytes]:
    step = _PIECES[data[-1] % len(_PIECES)] if data else 1
    step = max(step, len(data) // 64)
    return [data[start : start + step] for start in range(0, len(data), step)]


def _preamble(rng: Random, base: bytes, header: bytes) -> bytes:
    """Return a preamble with other fields, or one that describes another file."""
    if header and rng.random() < 0.6:
        header = _header(rng, header)
    length = rng.choice((8, 1024, 1024, 1 << 21, 1 << 22, (1 << 22) + 1, 7, -1))
    value: Any = {"base": base, "block_bytes": length, "header": header}
    if rng.random() < 0.2:
        value = Values([b"", 1 << 22]).changed(value, rng)
    body = packed(value)
    return len(body).to_bytes(4, "little") + body


def _header(rng: Random, header: bytes) -> bytes:
    """Return the header of a safetensors file with other tensors."""
    table = json.loads(header[8:])
    change = Values([0, 1, 1 << 20, "F32", "BF16", "I64", "BOOL", "__metadata__", "\ud800"])
    if rng.random() < 0.3:
        count = rng.choice((0, 1, 255, 1 << 16, 1 << 22, 1 << 24))
        table = {"x": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}}
        if rng.random() < 0.3:
            table = {rng.choice(("\ud800", "\0", "é" * 300)): table["x"]}
    else:
        table = change.changed(table, rng)
    body = json.dumps(table, default=str).encode()
    if rng.random() < 0.05:
        body = rng.choice((b"[" * 3000, b"9" * 5000, b'{"a":' * 2000, b"1e999", b"NaN"))
    return len(body).to_bytes(8, "little") + body


def _zeros(rng: Random) -> bytes:
    """Return the encoding of tensors of zeros: a few bytes that decode to many, under any name."""
    count = rng.choice((0, 1, 1000, 1 << 16, 1 << 21))
    length = rng.choice((1024, 1 << 21, 1 << 22))
    name = rng.choice(("x", "\ud800", "\0", "é" * 512, "__metadata__"))
    kind, width = rng.choice((("BF16", 2), ("F32", 4), ("I64", 8), ("BOOL", 1)))
    place = {"dtype": kind, "shape": [count], "data_offsets": [0, width * count]}
    table = json.dumps({name: place}).encode()
    header = len(table).to_bytes(8, "little") + table
    body = packed({"base": b"", "block_bytes": length, "header": header})
    planes = bytes(width)
    one = bytes((block.FULL,)) + len(planes).to_bytes(4, "little") + planes
    return len(body).to_bytes(4, "little") + body + one * -(-count // (length // width))


def _blocks(rng: Random, blocks: bytes) -> bytes:
    """Return blocks, some with another body of the length in their header."""
    changed = bytearray()
    at = 0
    while at + block.HEAD_BYTES <= len(blocks):
        end = at + block.HEAD_BYTES + int.from_bytes(blocks[at + 1 : at + 5], "little")
        kind, body = blocks[at], blocks[at + block.HEAD_BYTES : end]
        if rng.random() < 0.3:
            kind = rng.choice((kind, kind, 0, 1, 2, 3, 4))
            body = mutated_bytes(body, rng, [blocks], 8192)
        changed += bytes((kind,)) + len(body).to_bytes(4, "little") + body
        at = end
    return bytes(changed)


def _parts(encoding: bytes) -> tuple[bytes, bytes]:
    end = 4 + int.from_bytes(encoding[:4], "little")
    return encoding[:end], encoding[end:]


def _full() -> Decoder:
    _, files = _base()
    preamble, blocks = _parts(files["full"])
    header = stream.source_of(
        lambda at, length: files["second"][at : at + length], len(files["second"])
    ).layout.header

    def remade(rng: Random) -> bytes:
        if rng.random() < 0.1:
            return _zeros(rng)
        start = preamble if rng.random() < 0.4 else _preamble(rng, b"", header)
        return start + _blocks(rng, blocks)

    def read(data: bytes) -> bool:
        decoder, length = StreamDecoder(None, FILE_BYTES_MAX), 0
        for piece in _cut_into_pieces(data):
            length += sum(map(len, decoder.feed(piece)))
            if length > FILE_BYTES_MAX:
                raise BrokenBoundError("more than the file may have")
        return bool(decoder.policy)

    return Decoder([files["full"]], read, (EncodingError,), [remade])


def _patch() -> Decoder:
    base, files = _base()
    preamble, blocks = _parts(files["patch"])

    def remade(rng: Random) -> bytes:
        start = preamble if rng.random() < 0.7 else _preamble(rng, base.policy, b"")
        return start + _blocks(rng, blocks)

    def read(data: bytes) -> bool:
        pieces = _cut_into_pieces(data)
        decoder = StreamDecoder(base, FILE_BYTES_MAX)
        for piece in pieces:
            for _ in decoder.feed(piece):
                pass
        digest_of_all = decoder.policy
        _read_patch(base, pieces)  # any holder of the base accepts the same
        return bool(digest_of_all)

    return Decoder([files["patch"]], read, (EncodingError,), [remade])


def _patch_reader() -> Decoder:
    base, files = _base()
    preamble, blocks = _parts(files["patch"])

    def read(data: bytes) -> bool:
        _read_patch(base, _cut_into_pieces(data))
        return True

    remake = [lambda rng: preamble + _blocks(rng, blocks)]
    return Decoder([files["patch"]], read, (EncodingError,), remake)


def _read_patch(base: Base, pieces: list[bytes]) -> None:
    reader = PatchReader(base.policy, base.source.layout, _words_of(base))
    for piece in pieces:
        for change in reader.feed(piece):
            positions = change.positions
            if len(positions) != len(change.words):
                raise BrokenBoundError("another number of words than of positions")
            if (np.diff(positions) <= 0).any() or not 0 <= positions[0] <= positions[-1]:
                raise BrokenBoundError("positions that do not ascend")
            if positions[-1] >= change.tensor.count:
                raise BrokenBoundError("a position beyond its tensor")
    reader.finish()


def _words_of(base: Base) -> stream.ReadWords:
    def read(tensor: tensor_file.TensorPlace, positions: Any) -> Any:
        data = base.source.read(tensor.offset, tensor.count * tensor.element_bytes)
        return np.frombuffer(data, f"<u{tensor.element_bytes}")[positions]

    return read


def _block() -> Decoder:
    """Read one block; kind, element width and log2 of the element count come first."""
    words = np.arange(300, dtype=np.uint16) * 7
    base = words ^ (np.arange(300) % 11 == 0).astype(np.uint16) * 3
    seeds = [
        bytes((kind, width, 9)) + block.encode(words, against)[block.HEAD_BYTES :]
        for kind, against in ((block.FULL, None), (block.PATCH, base), (block.DENSE, words + 1))
        for width in (0, 1, 2, 3)
    ]

    def read(data: bytes) -> bool:
        if len(data) < 3:
            return False
        kind, width = data[0] % 5, 1 << data[1] % 4
        count = min(1 << data[2] % 24, framing.BLOCK_BYTES_MAX // width)
        if count == 512:
            count = 300
        body = memoryview(data)[3:]
        zeros = np.zeros(count, f"<u{width}")
        decoded = block.decode(kind, body, zeros, count, width).words
        return len(decoded) == count

    return Decoder(seeds, read, (EncodingError,))


def _tensor_file() -> Decoder:
    header = stream.source_of(
        lambda at, length: made.encodings()["first"][at : at + length],
        len(made.encodings()["first"]),
    ).layout.header

    def read(data: bytes) -> bool:
        return tensor_file.parse(data).total_bytes >= len(data)

    return Decoder([header], read, (EncodingError,), [lambda rng: _header(rng, header)])


# Rollouts and their proofs


def _body() -> Decoder:
    manifest = run_manifest()
    proof = ProofLayout(Variant.BF16, 32, manifest.toploc.top_k).proof_bytes
    sequences = [
        RolloutSequence((2 + n, 3, 1), (-0.5, -0.25 * n, 0.0), 1_000_000 * (n % 2), (bytes(proof),))
        for n in range(4)
    ]
    values = [
        {
            "tokens": np.array(one.tokens, "<i4").tobytes(),
            "logprobs": np.array(one.logprobs, "<f4").tobytes(),
            "reward": one.reward,
            "proofs": one.proofs,
        }
        for one in sequences
    ]
    change = Values([0, -1, 1_000_000, np.array([np.nan] * 3, "<f4").tobytes(), bytes(12)])
    commit = made.COMMIT.message

    def read(data: bytes) -> bool:
        claimed = commit.model_copy(update={"body_bytes": len(data), "tokens": 12})
        read = read_body(manifest, claimed, data)
        if not isinstance(read, list):
            return False
        check_claims(manifest, claimed, read)
        for one in read:
            proof_fault(one.proofs, len(one.tokens), hidden=128, variant=Variant.FP32, top_k=64)
        return True

    remake = [lambda rng: packed(change.changed(values, rng))]
    return Decoder([encode_body(sequences)], read, remake=remake)


def _proofs(variant: Variant) -> Decoder:
    """Read the proofs of 70 tokens; compare well-formed ones with states."""
    drawn = np.random.default_rng(1).standard_normal((70, 128)).astype(np.float32)
    states = drawn if variant is Variant.FP32 else drawn.view(np.uint32) >> 16
    if variant is Variant.BF16:
        states = states.astype(np.uint16)
    (proofs,) = build_proofs_batch([states], top_k=16)
    size = len(proofs[0])

    def read(data: bytes) -> bool:
        given = [data[start : start + size] for start in range(0, len(data), size)]
        if proof_fault(given, 70, hidden=128, variant=variant, top_k=16) is not None:
            return False
        return len(verify_proofs_batch([states], [given], top_k=16)[0]) == 3

    return Decoder([b"".join(proofs)], read)


TARGETS = (
    Target("shard-index", _index),
    # A block of the largest size is 2^22 bytes (``framing``).
    Target("encoding-full", _full, growth_bytes_max=160 << 20),
    Target("encoding-patch", _patch),
    Target("encoding-patch-reader", _patch_reader),
    Target("encoding-block", _block, growth_bytes_max=160 << 20),
    Target("tensor-file", _tensor_file),
    Target("rollout-body", _body),
    Target("toploc-bf16", lambda: _proofs(Variant.BF16)),
    Target("toploc-fp32", lambda: _proofs(Variant.FP32)),
)
