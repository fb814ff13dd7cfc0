"""TLS probe: reads the peer id at an address from libp2p's TLS handshake.

It opens a separate connection, because p2pd has one connection per peer and does not dial a
connected one. The server's certificate contains its libp2p key and a signature by it (libp2p's TLS
specification); the handshake proves possession of the certificate's key. The probe sends no
certificate, so the server closes the connection afterwards.
"""

import asyncio
import ssl

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.core.crypto import peer_id_from_public_key
from protocol.core.types import PeerId
from roles.ports.transport import TransportError

_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNED = b"libp2p-tls-handshake:"
_KEY = b"\x08\x01\x12\x20"
"""A ``PublicKey`` protobuf: type Ed25519, 32 bytes of data."""

_UNREADABLE = (
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Exceptions of certificate parsing besides ``ValueError``."""

_SEQUENCE, _OCTETS = b"\x30", b"\x04"
_GREETING = tuple(
    b"%c%s\n" % (len(word) + 1, word) for word in (b"/multistream/1.0.0", b"/tls/1.0.0")
)


async def key_at(address: str) -> PeerId:
    """Return the Ed25519 peer id at a multiaddress of the form ``/ip4/…/tcp/…``.

    Raises ``TransportError``. Has no deadline of its own.
    """
    match address.split("/"):
        case ["", "ip4" | "ip6", host, "tcp", port] if port.isdecimal():
            pass
        case _:
            raise TransportError(f"not of the form /ip4/…/tcp/…: {address}")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            return await _handshake(reader, writer)
        finally:
            writer.transport.abort()
    except (OSError, EOFError, OverflowError, ValueError, InvalidSignature) as error:
        raise TransportError(f"{address} does not answer as libp2p over TLS: {error}") from error


async def _handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> PeerId:
    writer.write(b"".join(_GREETING))
    for line in _GREETING:
        if await reader.readexactly(len(line)) != line:
            raise ValueError("unexpected multistream response")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # self-signed: see key_of
    context.set_alpn_protocols(["libp2p"])
    await writer.start_tls(context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return key_of(certificate or b"")


def key_of(der: bytes) -> PeerId:
    """Return the libp2p key of a certificate after verifying its signature.

    Raises ``ValueError`` and ``InvalidSignature``.
    """
    try:
        extension, named = _contents(x509.load_der_x509_certificate(der))
    except _UNREADABLE as error:
        raise ValueError(f"unsupported certificate: {error}") from error
    fields, rest = _element(_SEQUENCE, extension)
    key, fields = _element(_OCTETS, fields)
    signature, fields = _element(_OCTETS, fields)
    if rest or fields or not key.startswith(_KEY) or len(key) != len(_KEY) + 32:
        raise ValueError("the certificate has no Ed25519 key")
    public_key = key.removeprefix(_KEY)
    Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _SIGNED + named)
    return peer_id_from_public_key(public_key)


def _contents(certificate: x509.Certificate) -> tuple[bytes, bytes]:
    """Return libp2p's extension (empty if absent) and the certificate's own key."""
    values = [
        extension.value.value
        for extension in certificate.extensions
        if isinstance(extension.value, x509.UnrecognizedExtension) and extension.oid == _EXTENSION
    ]
    named = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return b"".join(values), named


def _element(tag: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the content of the first DER element in ``data``, and the rest."""
    if data[:1] != tag or len(data) < 2:
        raise ValueError("unexpected DER tag")
    start, length = 2, data[1]
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        raise ValueError("truncated DER")
    return data[start : start + length], data[start + length :]
