from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core import codec, crypto
from protocol.core.faults import Fault
from protocol.core.types import Digest
from protocol.shardcast.index import (
    INDEX_BYTES_MAX,
    Shard,
    ShardIndex,
    chunk_digests,
    decode,
    encode,
    shard_count,
    shard_length,
)


def build(data: bytes, shard_bytes: int, chunk_bytes: int) -> ShardIndex:
    slices = [data[start : start + shard_bytes] for start in range(0, len(data), shard_bytes)]
    shards = tuple(
        Shard(crypto.digest(part), len(part), chunk_digests([part], chunk_bytes)) for part in slices
    )
    return ShardIndex(len(data), shard_bytes, chunk_bytes, shards)


@given(st.binary(min_size=1, max_size=400), st.integers(1, 90), st.integers(1, 90))
def test_an_index_comes_back_from_its_bytes(data: bytes, one: int, other: int) -> None:
    shard_bytes, chunk_bytes = max(one, other), min(one, other)
    index = build(data, shard_bytes, chunk_bytes)
    assert decode(encode(index)) == index
    assert len(index.shards) == shard_count(len(data), shard_bytes)
    lengths = [
        index.chunk_length(shard, chunk)
        for shard in range(len(index.shards))
        for chunk in range(len(index.shards[shard].chunks))
    ]
    assert sum(lengths) == len(data)
    assert min(lengths) > 0
    assert max(lengths) <= chunk_bytes


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 40))
def test_chunk_digests_do_not_depend_on_how_the_bytes_are_cut(
    pieces: list[bytes], chunk_bytes: int
) -> None:
    data = b"".join(pieces)
    expected = tuple(
        crypto.digest(data[start : start + chunk_bytes])
        for start in range(0, len(data), chunk_bytes)
    )
    assert chunk_digests(pieces, chunk_bytes) == expected


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_fault(data: bytes) -> None:
    assert isinstance(decode(data), Fault)


@given(st.data())
def test_flipped_bytes_never_raise(data: st.DataObject) -> None:
    good = bytearray(encode(build(b"x" * 100, 40, 16)))
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    result = decode(bytes(good))
    assert isinstance(result, Fault | ShardIndex)


GOOD = {
    "total_bytes": 100,
    "shard_bytes": 60,
    "chunk_bytes": 30,
    "shards": [[b"a" * 32, b"b" * 64], [b"c" * 32, b"d" * 64]],
}


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"total_bytes": 0},
        {"total_bytes": 60},
        {"total_bytes": 121},
        {"total_bytes": True},
        {"total_bytes": 1 << 60},
        {"shard_bytes": 0},
        {"shard_bytes": (1 << 30) + 1},
        {"chunk_bytes": 61},
        {"chunk_bytes": "30"},
        {"shards": 2},
        {"shards": []},
        {"shards": [[b"a" * 32, b"b" * 64], [b"c" * 32, b"d" * 96]]},
        {"shards": [[b"a" * 32, b"b" * 64], [b"c" * 31, b"d" * 64]]},
        {"shards": [[b"a" * 32, b"b" * 64], [b"c" * 32]]},
        {"shards": [[b"a" * 32, b"b" * 64], [b"c" * 32, "d" * 64]]},
        {"shards": [[b"a" * 32, b"b" * 64], 7]},
        {"total_bytes": 80, "shards": [[b"a" * 32, b"b" * 64], [b"c" * 32, b"d" * 32]]},
    ],
)
def test_whatever_does_not_add_up_is_a_fault(change: dict[str, object]) -> None:
    assert isinstance(decode(codec.encode(GOOD)), ShardIndex)
    assert isinstance(decode(codec.encode(GOOD | change)), Fault)


def test_a_62_gb_policy_has_an_index_under_the_limit() -> None:
    total, shard_bytes, chunk_bytes = 62_000_000_000, 50_000_000, 1 << 20
    shards = tuple(
        Shard(
            Digest(bytes(32)),
            length := shard_length(total, shard_bytes, number),
            (Digest(bytes(32)),) * shard_count(length, chunk_bytes),
        )
        for number in range(shard_count(total, shard_bytes))
    )
    index = ShardIndex(total, shard_bytes, chunk_bytes, shards)
    assert len(index.shards) == 1240
    assert len(encode(index)) < INDEX_BYTES_MAX / 2
    assert decode(encode(index)) == index
    with pytest.raises(ValueError, match="larger chunks"):
        encode(replace(index, shards=shards * 3))
