import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import digest
from protocol.core.merkle import leaf_hash, path, root_from, root_of

HASHES = st.lists(st.binary(max_size=3).map(leaf_hash), min_size=1, max_size=70)


def naive_root(leaves: list[bytes]) -> bytes:
    """Return the root by the recursive definition of RFC 6962, section 2.1."""
    if not leaves:
        return digest(b"")
    if len(leaves) == 1:
        return digest(b"\x00" + leaves[0])
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return digest(b"\x01" + naive_root(leaves[:half]) + naive_root(leaves[half:]))


def naive_path(leaves: list[bytes], index: int) -> list[bytes]:
    """Return the audit path by the recursive definition of RFC 6962, section 2.1.1."""
    if len(leaves) == 1:
        return []
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    if index < half:
        return [*naive_path(leaves[:half], index), naive_root(leaves[half:])]
    return [*naive_path(leaves[half:], index - half), naive_root(leaves[:half])]


@pytest.mark.parametrize("size", [*range(34), 63, 64, 65, 127, 128, 129, 1000])
def test_roots_and_paths_are_those_of_rfc_6962(size):
    leaves = [b"%d" % number for number in range(size)]
    hashes = [leaf_hash(leaf) for leaf in leaves]
    assert root_of(hashes) == naive_root(leaves)
    for index in range(0, size, max(1, size // 16)):
        found = path(hashes, index)
        assert list(found) == naive_path(leaves, index)
        assert root_from(hashes[index], index, size, found) == root_of(hashes)


@given(HASHES, st.data())
def test_only_the_path_of_a_leaf_leads_to_the_root(hashes, data):
    index = data.draw(st.integers(0, len(hashes) - 1))
    root, good = root_of(hashes), path(hashes, index)
    assert root_from(hashes[index], index, len(hashes), good) == root
    assert root_from(leaf_hash(b"another leaf"), index, len(hashes), good) != root
    assert root_from(hashes[index], index, len(hashes), (*good, bytes(32))) is None
    if good:
        place = data.draw(st.integers(0, len(good) - 1))
        changed = (*good[:place], bytes(32), *good[place + 1 :])
        assert root_from(hashes[index], index, len(hashes), changed) != root
        shorter = (*good[:place], *good[place + 1 :])
        assert root_from(hashes[index], index, len(hashes), shorter) is None


@given(
    st.binary(max_size=40),
    st.integers(-3, 2**70),
    st.integers(-3, 2**70),
    st.lists(st.binary(max_size=33) | st.binary(min_size=32, max_size=32), max_size=70),
)
def test_a_path_from_outside_never_raises(leaf, index, size, neighbours):
    root_from(leaf, index, size, neighbours)


def test_a_path_from_outside_is_checked():
    one, two = leaf_hash(b"1"), leaf_hash(b"2")
    assert root_from(one, 0, 2, (two,)) == root_of([one, two])
    assert root_from(one, 1, 2, (two,)) == root_of([two, one])
    for index, size in ((2, 2), (-1, 2), (0, 0), (0, 1), (0, 3), (0, 2**64)):
        assert root_from(one, index, size, (two,)) is None
    assert root_from(one, 0, 2, (two[:31],)) is None
    assert root_from(one[:31], 0, 1, ()) is None


def test_an_inner_node_is_no_leaf():
    one, two = leaf_hash(b"1"), leaf_hash(b"2")
    assert leaf_hash(one + two) != root_of([one, two])


@pytest.mark.parametrize("index", [-1, 2])
def test_no_path_of_a_leaf_that_is_not_there(index):
    with pytest.raises(IndexError, match="of 2"):
        path([leaf_hash(b"1"), leaf_hash(b"2")], index)
