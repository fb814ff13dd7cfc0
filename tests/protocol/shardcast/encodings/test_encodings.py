"""Encodings of weights: round trips, sizes, and hostile publishers."""

import json
import math
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from protocol.core import codec
from protocol.core.crypto import digest
from protocol.core.types import Digest
from protocol.shardcast.encodings import (
    block,
    framing,
    steps,
    stream,
    tensor_file,
)
from protocol.shardcast.encodings.planes import SPARSE_BYTES_MIN, PlaneReader, PlaneWriter, ones
from protocol.shardcast.encodings.stream import Base, ByteReader, PatchReader, StreamDecoder
from protocol.shardcast.encodings.tensor_file import EncodingError
from tests.worlds.tensor_files import file_of, policy_of

FILE_BYTES_MAX = 1 << 30
BASE_POLICY = digest(b"base")


def source_of(file: bytes) -> ByteReader:
    return stream.source_of(lambda offset, length: file[offset : offset + length], len(file))


def encoding_of(file: bytes, base: Base | None, block_bytes: int = 256) -> bytes:
    return b"".join(stream.encode(source_of(file), base, block_bytes))


def decoded(
    data: bytes, base: Base | None, step: int = 1000, bytes_max: int = FILE_BYTES_MAX
) -> tuple[bytes, Digest]:
    decoder = StreamDecoder(base, bytes_max)
    out = [
        bytes(part)
        for start in range(0, len(data), step)
        for part in decoder.feed(data[start : start + step])
    ]
    return b"".join(out), decoder.policy


def base_of(file: bytes) -> Base:
    return Base(BASE_POLICY, source_of(file))


words_of = st.sampled_from([1, 2, 4, 8]).flatmap(
    lambda width: arrays.arrays(
        np.dtype(f"<u{width}"),
        st.integers(0, 300),
        elements=st.one_of(
            st.integers(0, 3),
            st.integers(2 ** (8 * width - 1) - 2, 2 ** (8 * width - 1) + 2),
            st.integers(0, 2 ** (8 * width) - 1),
        ),
        fill=st.integers(0, 2),
    )
)


@st.composite
def versions(draw) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the tensors of a base and of the version after it."""
    old, new = {}, {}
    for number in range(draw(st.integers(0, 4))):
        words = draw(words_of)
        changed = words.copy()
        seed = draw(st.integers(0, 2**32 - 1))
        share = draw(st.sampled_from([0.0, 0.01, 0.3, 0.6, 1.0]))
        size = draw(st.sampled_from([1, 3, 200, 2**60]))
        rng = np.random.default_rng(seed)
        hit = rng.random(len(words)) < share
        changed[hit] += rng.integers(-size, size, hit.sum(), endpoint=True).astype(words.dtype)
        old[f"t{number}"], new[f"t{number}"] = words, changed
    return old, new


@settings(max_examples=200, deadline=None)
@given(versions(), st.integers(8, 1600), st.integers(1, 500), st.booleans())
def test_a_version_comes_back_however_it_is_cut(pair, block_bytes, step, patched):
    old, new = map(file_of, pair)
    base = base_of(old) if patched else None
    data = encoding_of(new, base, block_bytes)
    assert decoded(data, base, step) == (new, policy_of(pair[1]))


def read_of(file: bytes, asked: list[int] | None = None):
    """Return a reader of a file's words at given positions."""

    def read(tensor, places):
        if asked is not None:
            asked.extend(places.tolist())
        end = tensor.offset + tensor.count * tensor.element_bytes
        return np.frombuffer(file[tensor.offset : end], f"<u{tensor.element_bytes}")[places]

    return read


def changes_of(data: bytes, old: bytes, step: int = 1000, asked: list[int] | None = None):
    reader = PatchReader(BASE_POLICY, source_of(old).layout, read_of(old, asked))
    found = [
        change
        for start in range(0, len(data), step)
        for change in reader.feed(data[start : start + step])
    ]
    reader.finish()
    return found


def applied(changes, file: bytes) -> bytes:
    out = bytearray(file)
    for change in changes:
        width = change.tensor.element_bytes
        assert (np.diff(change.positions) > 0).all()
        for place, word in zip(change.positions.tolist(), change.words.tolist(), strict=True):
            assert 0 <= place < change.tensor.count
            offset = change.tensor.offset + place * width
            out[offset : offset + width] = word.to_bytes(width, "little")
    return bytes(out)


@settings(max_examples=200, deadline=None)
@given(versions(), st.integers(8, 1600), st.integers(1, 500))
def test_a_patch_says_what_it_changes_in_its_base(pair, block_bytes, step):
    old, new = map(file_of, pair)
    data = encoding_of(new, base_of(old), block_bytes)
    assert applied(changes_of(data, old, step), old) == new


def test_tensors_of_one_width_share_blocks_and_others_do_not():
    """A block for each tensor of a small model takes twice as long."""
    widths = [2, 2, 2, 2, 4, 2, 2, 1, 2]
    tensors = {f"t{n}": np.arange(60, dtype=f"<u{width}") for n, width in enumerate(widths)}
    layout = source_of(file_of(tensors)).layout
    cut = list(framing.pieces(layout, 256))  # 128 elements of two bytes
    held = [[(part.tensor.name, part.first, part.count) for part in one.parts] for one in cut]
    order = [place.name for place in layout.places]
    assert order == list(tensors), "else the next lines say nothing"
    assert held == [
        [("t0", 0, 60), ("t1", 0, 60), ("t2", 0, 8)],
        [("t2", 8, 52), ("t3", 0, 60)],
        [("t4", 0, 60)],
        [("t5", 0, 60), ("t6", 0, 60)],
        [("t7", 0, 60)],
        [("t8", 0, 60)],
    ]
    ends = [one.offset + one.length for one in cut]
    assert [one.offset for one in cut] == [len(layout.header), *ends[:-1]]
    assert ends[-1] == layout.total_bytes


def test_a_patch_asks_for_no_more_of_its_base_than_it_changes():
    """The unchanged block reads nothing; positions are those of the tensor."""
    old = np.zeros(300, "<u4")
    new = old.copy()
    new[[7, 130, 299]] = 1, 2, 3
    new[64:128] = np.random.default_rng(3).integers(0, 2**32, 64, dtype=np.uint32)
    asked: list[int] = []
    data = encoding_of(file_of({"w": new}), base_of(file_of({"w": old})))
    found = changes_of(data, file_of({"w": old}), asked=asked)
    assert asked == [7, 130, 299]
    assert [change.positions.tolist() for change in found] == [[7], [*range(64, 128)], [130], [299]]


def test_a_patch_is_read_against_its_base_alone():
    file, base, encoding = sample()
    layout = base.source.layout
    with pytest.raises(EncodingError, match="another base"):
        list(PatchReader(digest(b"other"), layout, read_of(file)).feed(encoding))
    with pytest.raises(EncodingError, match="another base"):
        list(PatchReader(BASE_POLICY, layout, read_of(file)).feed(encoding_of(file, None)))


def test_a_patch_that_ends_early_or_late_is_no_patch():
    file, _, encoding = sample()
    for end in (0, 3, 20, len(encoding) - 1):
        with pytest.raises(EncodingError, match="early"):
            changes_of(encoding[:end], file)
    with pytest.raises(EncodingError, match="after the last"):
        changes_of(encoding + b"x", file)


def test_neighbours_of_one_sign_are_one_apart():
    floats = np.array([-2.5, -1e-40, 1e-40, 1.0], np.float32)
    beyond = np.nextafter(floats, np.sign(floats) * np.inf)
    assert (beyond.view(np.uint32) - floats.view(np.uint32)).tolist() == [1] * 4


@settings(max_examples=200, deadline=None)
@given(words_of, st.integers(0, 2**32 - 1))
def test_steps_come_back(words, seed):
    rng = np.random.default_rng(seed)
    kind = words.dtype.type
    small = rng.integers(-2, 3, len(words)).astype(words.dtype)
    differences = np.where(rng.random(len(words)) < 0.5, small, words)
    told = steps.pack(differences)
    near = np.isin(differences, np.array([0, 1, -1]).astype(kind))
    assert steps.moved(told).tolist() == np.flatnonzero(differences).tolist()
    assert steps.moved_farther(told).tolist() == np.flatnonzero(~near).tolist()
    back = steps.differences(told, len(words), words.itemsize)
    assert back.tolist() == np.where(near, differences, 0).tolist()
    assert steps.far_share(differences) == pytest.approx((~near).mean()) if len(words) else True


def packed(plane: np.ndarray) -> bytes:
    writer = PlaneWriter()
    writer.plane(plane)
    return b"".join(writer.parts)


def unpacked(data: bytes, count: int) -> np.ndarray:
    reader = PlaneReader(memoryview(data))
    plane = reader.plane(count)
    reader.finish()
    return plane


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5000), st.floats(0, 1), st.integers(1, 256), st.integers(0, 2**32 - 1))
def test_planes_come_back(count, share, values, seed):
    rng = np.random.default_rng(seed)
    plane = np.where(rng.random(count) < share, rng.integers(0, values, count), 0).astype(np.uint8)
    assert unpacked(packed(plane), count).tolist() == plane.tolist()


@pytest.mark.parametrize("share", [0.0005, 0.005, 0.012, 0.035, 0.1, 0.2, 0.35, 0.6])
def test_steps_drawn_by_lot_take_little_more_than_their_entropy(share):
    rng = np.random.default_rng(3)
    moves = rng.choice([1, 0xFFFF], 1 << 20)
    differences = np.where(rng.random(len(moves)) < share, moves, 0).astype(np.uint16)
    p = np.count_nonzero(differences) / len(differences)
    entropy_bits = (p - p * math.log2(p) - (1 - p) * math.log2(1 - p)) * len(differences)
    most = 1.1 if share > 0.001 else 1.25
    assert 8 * len(packed(steps.pack(differences))) <= most * entropy_bits


def test_a_bf16_step_of_one_place_takes_a_hundredth():
    """1.18 % of the weights move by one place: the entropy of that is 151 times shorter."""
    rng = np.random.default_rng(7)
    old = rng.integers(0x3A00, 0x3D00, 1 << 21, dtype=np.uint16)
    new = old + np.where(rng.random(len(old)) < 0.0118, rng.choice([1, 0xFFFF], len(old)), 0)
    files = [file_of({"w": words.astype("<u2")}) for words in (old, new)]
    data = encoding_of(files[1], base_of(files[0]), stream.BLOCK_BYTES)
    assert len(files[1]) / len(data) > 0.92 * 151
    assert decoded(data, base_of(files[0]), 1 << 20)[0] == files[1]


@pytest.mark.parametrize("size", [1e-6, 1e-4, 1e-3])
def test_a_float32_step_takes_little_more_than_the_entropy_of_its_differences(size):
    """Every weight moves, so the entropy is that of lengths and of the bits below the first."""
    rng = np.random.default_rng(9)
    old = (0.02 * rng.standard_normal(1 << 18)).astype(np.float32)
    new = old + (size * rng.standard_normal(len(old))).astype(np.float32)
    moved = new.view(np.int32).astype(np.int64) - old.view(np.int32)
    moved = moved[(new < 0) == (old < 0)]  # the others are few, and far apart
    lengths = np.frexp(np.abs(moved).astype(float))[1]
    counts = np.unique(lengths * np.sign(moved), return_counts=True)[1]
    entropy_bits = -(counts * np.log2(counts / len(moved))).sum() + np.maximum(lengths - 1, 0).sum()
    old_file, new_file = (file_of({"w": words.view("<u4")}) for words in (old, new))
    data = encoding_of(new_file, base_of(old_file), stream.BLOCK_BYTES)
    assert 8 * len(data) <= 1.08 * entropy_bits
    assert decoded(data, base_of(old_file), 1 << 20)[0] == new_file
    assert applied(changes_of(data, old_file), old_file) == new_file


def test_noise_is_stored_as_it_is_and_never_longer():
    noise = np.random.default_rng(5).integers(0, 2**32, 100_000, dtype=np.uint32)
    zeros = np.zeros_like(noise)
    base = base_of(file_of({"w": zeros}))
    data = encoding_of(file_of({"w": noise}), base, 1 << 18)
    assert len(data) < noise.nbytes * 1.001
    assert decoded(data, base)[0] == file_of({"w": noise})


def test_a_base_with_other_tensors_is_no_base():
    old, new = file_of({"w": np.zeros(8, "<u2")}), file_of({"w": np.zeros(9, "<u2")})
    with pytest.raises(EncodingError, match="other tensors"):
        encoding_of(new, base_of(old))


# Hostile publishers


def refused(data: bytes, base: Base | None = None, bytes_max: int = FILE_BYTES_MAX) -> str:
    with pytest.raises(EncodingError) as caught:
        decoded(data, base, bytes_max=bytes_max)
    return str(caught.value)


def sample(count: int = 300) -> tuple[bytes, Base, bytes]:
    rng = np.random.default_rng(1)
    old = rng.integers(0, 2**16, count, dtype=np.uint16)
    new = old + (rng.random(count) < 0.1)
    base = base_of(file_of({"w": old}))
    file = file_of({"w": new.astype("<u2")})
    return file, base, encoding_of(file, base)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_decode_to_something(data):
    """No other exception and no more than the file; digests identify the tensors."""
    file, base, encoding = sample()
    mutated = bytearray(encoding)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(mutated) - 1))
        mutated[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decoder = StreamDecoder(base, FILE_BYTES_MAX)
    try:
        out = b"".join(bytes(part) for part in decoder.feed(bytes(mutated)))
        _ = decoder.policy
    except EncodingError:
        return
    assert len(out) == len(file)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_of_a_patch_are_refused_or_lie_within_its_tensors(data):
    _, base, encoding = sample()
    old = base.source.layout.header + base.source.read(len(base.source.layout.header), 600)
    mutated = bytearray(encoding)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(mutated) - 1))
        mutated[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        found = changes_of(bytes(mutated), old)
    except EncodingError:
        return
    assert len(applied(found, old)) == len(old)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    refused(data)
    refused(data, sample()[1])


def test_an_encoding_that_ends_early_or_late_is_refused():
    _, base, encoding = sample()
    for end in (0, 3, 20, len(encoding) - 1):
        assert "early" in refused(encoding[:end], base)
    assert "after the last" in refused(encoding + b"x", base)


def test_another_base_is_refused():
    file, base, encoding = sample()
    other = Base(digest(b"other"), base.source)
    assert "another base" in refused(encoding, other)
    assert "another base" in refused(encoding, None)
    assert "another base" in refused(encoding_of(file, None), base)


def test_a_file_that_is_too_large_is_refused_before_its_first_block():
    file, _, _ = sample()
    assert "bytes" in refused(encoding_of(file, None), None, len(file) - 1)


def body_of(plane: bytes) -> bytes:
    """Return a block of bytes whose only plane is this frame."""
    packed = bytes([2]) + len(plane).to_bytes(4, "little") + plane
    return bytes([block.FULL]) + len(packed).to_bytes(4, "little") + packed


def full_encoding(blocks: bytes, count: int) -> bytes:
    source = source_of(file_of({"w": np.zeros(count, np.uint8)}))
    return next(stream.encode(source, None, 1 << 20)) + blocks


def test_a_bomb_costs_nothing():
    """One frame states its length, one does not."""
    bomb = zstandard.compress(bytes(1 << 28), 19)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28))
    tracemalloc.start()
    for frame in (bomb, silent):
        assert "length" in refused(full_encoding(body_of(frame), 1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def plane_refused(data: bytes, count: int) -> str:
    with pytest.raises(EncodingError) as caught:
        unpacked(data, count)
    return str(caught.value)


def test_a_sparse_plane_is_bounded():
    count = 600
    plane = np.zeros(count, np.uint8)
    plane[[3, 77, 599]] = 9, 8, 7
    honest = packed(plane)
    assert honest[:2] == bytes([3, 3]), "its bits are a sparse plane, too"
    for end in range(len(honest)):
        assert "early" in plane_refused(honest[:end], count)
    assert "after the last" in plane_refused(honest + b"x", count)
    assert "early" in plane_refused(bytes([3, 1]) + b"\xff" * 9, 600)
    assert "too many" in plane_refused(bytes([3, 1]) + b"\xff" * 75 + bytes([1]) + bytes(600), 600)
    beyond = bytes([3, 1]) + bytes(74) + b"\x01" + bytes([1, 1])
    assert "too many" in plane_refused(beyond, 599)
    assert "too short" in plane_refused(bytes([3, 0, 1]), SPARSE_BYTES_MIN - 1)
    within = bytes([3, 1, 0x80]) + bytes(74)
    assert unpacked(within + bytes([1, 5]), 600).tolist() == [5] + [0] * 599
    for kind in (0, 3, 4):
        assert "unknown kind" in plane_refused(within + bytes([kind, 5]), 600)


def test_a_frame_within_a_sparse_plane_is_no_bomb():
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    plane = bytes([3, 1, 0x80]) + bytes(74) + bytes([2]) + len(bomb).to_bytes(4, "little") + bomb
    tracemalloc.start()
    assert "another length" in plane_refused(plane, 600)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_steps_beyond_the_block_are_refused():
    told = np.array([0b00_00_01_00], np.uint8)
    assert steps.differences(told, 3, 2).tolist() == [0, 0, 0xFFFF]
    with pytest.raises(EncodingError, match="beyond"):
        steps.differences(told, 2, 2)


def test_a_block_longer_than_its_planes_is_refused():
    oversize = bytes([block.PATCH]) + (100 + 6).to_bytes(4, "little")
    assert "a block of" in refused(full_encoding(oversize, 100))
    assert "early" in refused(full_encoding(bytes([block.FULL]) + (105).to_bytes(4, "little"), 100))


def test_blocks_without_a_base_or_of_unknown_kinds_are_refused():
    empty = bytes(4)
    for kind in (block.SAME, block.PATCH, block.DENSE):
        assert "needs a base" in refused(full_encoding(bytes([kind]) + empty, 100))
    _, base, encoding = sample()
    start = 4 + int.from_bytes(encoding[:4], "little")
    assert "unknown kind" in refused(encoding[:start] + b"\7" + encoding[start + 1 :], base)


def test_preambles_with_something_off_are_refused():
    header = file_of({"w": np.zeros(4, np.uint8)})[:-4]
    good = {"base": b"", "block_bytes": 10, "header": header}
    for change in (
        {"base": 1},
        {"base": b"x"},
        {"block_bytes": framing.BLOCK_BYTES_MIN - 1},
        {"block_bytes": framing.BLOCK_BYTES_MAX + 1},
        {"block_bytes": True},
        {"header": b""},
        {"header": "text"},
        {"more": 1},
    ):
        data = codec.encode(good | change)
        refused(len(data).to_bytes(4, "little") + data)
    refused((tensor_file.HEADER_BYTES_MAX).to_bytes(4, "little"))


def header_of(table: object) -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text


def entry(**change: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} | change


@pytest.mark.parametrize(
    "table",
    [
        b"[" * 100_000,
        b"\xff\xff",
        [],
        {"w": 1},
        {"w": entry(dtype="U4")},
        {"w": entry(dtype=["U8"])},
        {"w": entry(shape=[5])},
        {"w": entry(shape=[-1, -4])},
        {"w": entry(shape=[True, 4])},
        {"w": entry(shape=[1] * 17 + [4])},
        {"w": entry(shape=[1 << 48, 0], data_offsets=[0, 0])},
        {"w": entry(data_offsets=[4, 8])},
        {"w": entry(data_offsets=[0, 4, 8])},
        {"w": entry(more=1)},
        {"w" * 600: entry()},
        {"\ud800": entry()},
        {"v": entry(), "w": entry()},
        {"v": entry(), "w": entry(data_offsets=[5, 9])},
    ],
)
def test_headers_with_something_off_are_refused(table):
    with pytest.raises(EncodingError):
        tensor_file.parse(header_of(table))


def test_a_header_that_is_longer_than_it_says_is_refused():
    with pytest.raises(EncodingError, match="another length"):
        tensor_file.parse(header_of({"w": entry()}) + b" ")


def test_a_header_may_have_metadata_and_tensors_in_any_order():
    table = {"b": entry(data_offsets=[4, 8]), "__metadata__": {"format": "pt"}, "a": entry()}
    parsed = tensor_file.parse(header_of(table))
    assert [place.name for place in parsed.places] == ["a", "b"]
    assert parsed.total_bytes == len(header_of(table)) + 8


def test_noise_planes_are_not_compressed():
    noise = np.random.default_rng(5).integers(0, 256, 5000).astype(np.uint8)
    assert packed(noise)[0] == 1


@given(st.integers(0, 2**32), st.integers(0, 4000), st.floats(0, 1))
def test_what_is_meant_is_found_however_much_it_is(seed, length, share):
    meant = np.random.default_rng(seed).random(length) < share
    assert ones(np.packbits(meant)).tolist() == np.flatnonzero(meant).tolist()
