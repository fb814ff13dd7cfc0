from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import Identity, verify
from protocol.core.faults import Fault, FaultCode
from protocol.gossipsub.message import (
    MESSAGE_ID_BYTES,
    GossipMessage,
    decode_message,
    encode_message,
    sign_message,
    verify_message,
)
from protocol.gossipsub.rpc import length_field, uvarint

AUTHOR = Identity(b"\x01" * 32)
MESSAGE = sign_message(AUTHOR, "topic", b"data", 7)


@given(st.binary(max_size=300), st.integers(0, 2**64 - 1), st.text(max_size=20))
def test_a_signed_message_survives_the_wire(data, seqno, topic):
    message = sign_message(AUTHOR, topic, data, seqno)
    decoded = decode_message(encode_message(message))
    assert decoded == message
    assert verify_message(decoded, verify)
    assert decoded.author == AUTHOR.peer_id


def test_the_message_id_is_author_and_big_endian_seqno():
    assert len(MESSAGE.message_id) == MESSAGE_ID_BYTES
    assert MESSAGE.message_id.startswith(bytes.fromhex("002408011220"))
    assert MESSAGE.message_id.endswith(bytes(7) + b"\x07")


def test_the_bytes_are_those_of_protobuf():
    source = (bytes.fromhex("002408011220") + AUTHOR.public_key).hex()
    unsigned = f"0a26{source}1204646174611a080000000000000007{'2205'}746f706963"
    signature = AUTHOR.sign(b"libp2p-pubsub:" + bytes.fromhex(unsigned))
    assert encode_message(MESSAGE).hex() == unsigned + "2a40" + signature.hex()


@pytest.mark.parametrize(
    "change",
    [{"data": b"Data"}, {"topic": "other"}, {"seqno": bytes(8)}, {"signature": bytes(64)}],
)
def test_a_tampered_message_does_not_verify(change):
    assert not verify_message(replace(MESSAGE, **change), verify)


def test_another_author_does_not_verify():
    other = sign_message(Identity(b"\x02" * 32), "topic", b"data", 7)
    assert not verify_message(replace(MESSAGE, source=other.source), verify)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(data):
    assert isinstance(decode_message(data), GossipMessage | Fault)


def _canonical_parts() -> list[bytes]:
    return [
        length_field(1, MESSAGE.source),
        length_field(2, MESSAGE.data),
        length_field(3, MESSAGE.seqno),
        length_field(4, MESSAGE.topic.encode()),
        length_field(5, MESSAGE.signature),
    ]


def test_only_one_spelling_is_accepted():
    parts = _canonical_parts()
    assert decode_message(b"".join(parts)) == MESSAGE
    spellings = [
        b"".join(reversed(parts)),
        b"".join([*parts, length_field(6, b"key")]),
        b"".join([*parts, length_field(15, b"later")]),
        b"".join([*parts, parts[4]]),
        b"".join(parts).replace(b"\x12\x04data", b"\x12\x84\x00data"),
        b"".join([parts[0], parts[2], parts[3], parts[4]]),
    ]
    for spelling in spellings:
        assert decode_message(spelling) == Fault(FaultCode.MESSAGE_NOT_CANONICAL)


@pytest.mark.parametrize(
    ("index", "part", "reason"),
    [
        (0, b"", "message-source"),
        (0, length_field(1, b"Q" * 38), "message-source"),
        (0, length_field(1, MESSAGE.source + b"x"), "message-source"),
        (2, length_field(3, bytes(7)), "message-seqno"),
        (3, length_field(4, b"\xff"), "message-malformed"),
        (4, length_field(5, bytes(63)), "message-signature"),
        (4, b"", "message-signature"),
        (1, uvarint(2 << 3) + b"\x01", "message-malformed"),
        (1, length_field(2, b"") * 9, "message-malformed"),
    ],
)
def test_a_bad_field_is_named(index, part, reason):
    parts = _canonical_parts()
    parts[index] = part
    fault = decode_message(b"".join(parts))
    assert isinstance(fault, Fault)
    assert fault.code == reason
