import base58
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import (
    PEER_ID_PREFIX,
    Identity,
    digest,
    peer_id_from_public_key,
    public_key_from_peer_id,
    signing_bytes,
    verify,
)
from protocol.core.types import PeerId

ONE = Identity(bytes(range(32)))
ORDER = 2**252 + 27742317777372353535851937790883648493
"""Order of the Ed25519 group (RFC 8032)."""


@given(st.binary(min_size=32, max_size=32))
def test_a_peer_id_holds_its_key(key):
    peer = peer_id_from_public_key(key)
    assert peer.startswith("12D3KooW")
    assert public_key_from_peer_id(peer) == key


@given(st.text(max_size=70))
def test_any_text_is_read_without_raising(text):
    key = public_key_from_peer_id(text)
    assert key is None or peer_id_from_public_key(key) == text


@pytest.mark.parametrize(
    "spelling",
    [
        "{} ",
        "{}\n",
        " {}",
        "1{}",
        "{}1",
        "{}\N{LATIN SMALL LETTER A WITH ACUTE}",
    ],
)
def test_a_key_has_one_spelling(spelling):
    alias = spelling.format(ONE.peer_id)
    assert public_key_from_peer_id(alias) is None
    assert not verify(PeerId(alias), b"message", ONE.sign(b"message"))


@pytest.mark.parametrize(
    "raw",
    [
        PEER_ID_PREFIX + bytes(31),
        PEER_ID_PREFIX + bytes(33),
        b"\x00\x24\x08\x02\x12\x20" + bytes(32),  # a secp256k1 key
        b"\x12\x20" + bytes(32),  # a hash of a key
    ],
)
def test_other_multihashes_hold_no_key(raw):
    assert public_key_from_peer_id(base58.b58encode(raw).decode()) is None


def test_white_space_instead_of_the_last_characters_is_no_key():
    assert public_key_from_peer_id(ONE.peer_id[:-2] + "  ") is None
    assert public_key_from_peer_id(ONE.peer_id[:-1] + "0") is None  # not of the alphabet


def test_a_signature_is_of_one_signer_and_one_message():
    signature = ONE.sign(b"message")
    assert verify(ONE.peer_id, b"message", signature)
    assert not verify(ONE.peer_id, b"massage", signature)
    assert not verify(Identity(bytes(32)).peer_id, b"message", signature)
    assert not verify(ONE.peer_id, b"message", signature[:-1])
    assert not verify(ONE.peer_id, b"message", signature + b"\0")
    assert not verify(ONE.peer_id, b"message", b"")
    assert not verify(PeerId(""), b"message", signature)


def test_a_signature_cannot_be_respelled():
    signature = ONE.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    assert not verify(ONE.peer_id, b"message", signature[:32] + scalar.to_bytes(32, "little"))


def test_a_key_that_is_no_point_verifies_nothing():
    peer = peer_id_from_public_key(b"\x02" + bytes(31))
    assert not verify(peer, b"message", bytes(64))


def test_signing_bytes_separate_kind_run_and_payload():
    parts = [
        ("a", b"b" * 32, b"c"),
        ("ab", b"b" * 31, b"c"),
        ("a", b"b" * 31, b"bc"),
        ("b", b"", b""),
    ]
    assert len({signing_bytes(*part) for part in parts[:2] + parts[3:]}) == 3
    assert signing_bytes("ab", b"", b"") != signing_bytes("a", b"b", b"")


def test_identity_file_round_trip_and_damage():
    data = ONE.to_protobuf()
    assert Identity.from_protobuf(data).peer_id == ONE.peer_id
    for bad in (b"", data[:-1], data + b"\0", b"\x08\x02" + data[2:], data[:-32] + bytes(32)):
        with pytest.raises(ValueError, match=r"not a libp2p|does not belong"):
            Identity.from_protobuf(bad)


def test_signatures_are_plain_ed25519():
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    assert ONE.sign(b"x") == key.sign(b"x")


def test_digests_are_32_bytes_of_blake3():
    # The empty input of the BLAKE3 paper's test vectors.
    assert digest(b"").hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    assert len(digest(b"x")) == 32
