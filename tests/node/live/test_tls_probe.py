"""TLS probe of an address, against foreign certificates."""

import pytest
from cryptography.exceptions import InvalidSignature

from node.live.tls_probe import key_of
from protocol.core.crypto import Identity
from tests.fuzz.outside import certificate

OWNER = Identity(bytes(32))
DER = certificate(OWNER)
CURVE = bytes.fromhex("06082a8648ce3d030107")
VERSION = bytes.fromhex("a003020102")


def test_a_certificate_names_the_key_that_signed_its_own():
    assert key_of(DER) == OWNER.peer_id


@pytest.mark.parametrize(
    "der",
    [
        b"",
        DER[:-40],
        certificate(OWNER, extensions=0),
        certificate(OWNER, extensions=2),
        DER.replace(CURVE, CURVE[:-1] + b"\x63"),
        DER.replace(VERSION, VERSION[:-1] + b"\x42"),
    ],
    ids=["nothing", "cut off", "no extension", "twice", "an unknown curve", "another version"],
)
def test_a_certificate_that_nobody_shows_is_an_error_of_one_kind(der):
    with pytest.raises(ValueError):  # noqa: PT011 - cryptography raises several subclasses
        key_of(der)


def test_a_key_that_did_not_sign_is_none():
    with pytest.raises(InvalidSignature):
        key_of(DER.replace(OWNER.public_key, Identity(b"1" * 32).public_key))
