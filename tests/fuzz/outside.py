"""External data: directory, addresses, TLS, HTTP heads, child processes, models, tasks."""

import json
import math
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from hivemind.dht.validation import DHTRecord
from hivemind.utils.serializer import MSGPackSerializer

from node.live.control import ipv4_of, peer_id_from_bytes
from node.live.records import (
    OWNERS_PER_KEY_MAX,
    BoundedStorage,
    RecordValidator,
    key_id,
)
from node.live.tls_probe import key_of
from node.local.addresses import address_block, check_peer_address, host_of, is_local
from node.local.invite_token import invite_token, read_invite
from node.network.connections.dial_policy import HOSTS_MAX, DialPolicy
from node.network.http.client import check_head
from node.network.http.range_response import Resource, answer
from protocol.core import codec
from protocol.core.crypto import Identity
from protocol.core.types import RunId
from protocol.membership.directory_buckets import Buckets
from protocol.membership.proof_of_work import WORK_BYTES, is_solved, work_epoch, work_proof
from protocol.messages import Invite
from protocol.run.sections import AdmissionSection
from roles.engines.subprocess import wire
from roles.environments.code import program_of, read_tests
from roles.ports.transport import TransportError
from tests.fuzz.documents import packed
from tests.fuzz.mutation import TEXTS, Values, mutated_bytes
from tests.fuzz.signed import UNTRUSTED, Correspondence
from tests.fuzz.target import BrokenBoundError, Decoder, Target

RUN = RunId(b"r" * 32)
NOW = 1_000_000.0
OWNER = UNTRUSTED[0]
BUCKETS = Buckets(RUN)
KEY = BUCKETS.key(0, 0)


class _Directory(Decoder):
    """Stores and looks up records; the first eight bytes of an input are the expiry."""

    def __init__(self) -> None:
        self._validator = RecordValidator(OWNER, RUN, BUCKETS, lambda: NOW)
        self._storage = BoundedStorage()
        seeds = [self._record(owner, b"value", NOW + 60.0) for owner in UNTRUSTED]
        change = Values([b"", OWNER.peer_id])

        def remade(rng: Random) -> bytes:
            content = rng.choice((b"", bytes(4000), change.changed(b"content", rng), 7, None))
            expires_at = NOW + rng.choice((1.0, 60.0, 3600.0, 3601.0, -1e9, math.inf, math.nan))
            return self._record(rng.choice(UNTRUSTED), content, expires_at)

        super().__init__(seeds, self._read, remake=[remade])

    def _record(self, owner: Identity, content: Any, expires_at: float) -> bytes:
        subkey, value = MSGPackSerializer.dumps(owner.peer_id), packed(content)
        record = DHTRecord(key_id(KEY), subkey, value, expires_at)
        own = RecordValidator(owner, RUN, BUCKETS, lambda: NOW)
        try:
            signed = own.sign_value(record)
        except ValueError:  # a non-finite expiry cannot be signed
            signed = value + bytes(64)
        return MSGPackSerializer.dumps([expires_at, subkey, signed])

    def _read(self, data: bytes) -> bool:
        try:
            fields = MSGPackSerializer.loads(data)
            expires_at, subkey, value = fields
            record = DHTRecord(key_id(KEY), bytes(subkey), bytes(value), float(expires_at))
        except Exception:  # noqa: BLE001 - what hivemind hands over has this shape
            return False
        if not self._validator.validate(record):
            return False
        owner = codec.decode(record.subkey, bytes_max=64)
        content = codec.decode(self._validator.strip_value(record), bytes_max=4096)
        key = key_id(KEY)
        self._storage.store_subkey(key, owner, record.value, record.expiration_time)
        return isinstance(content, bytes)

    def check(self) -> None:
        found = self._storage.get(key_id(KEY))
        if found is not None and len(found.value) > OWNERS_PER_KEY_MAX:
            raise BrokenBoundError(f"{len(found.value)} records")


class _Addresses(Decoder):
    """Reads addresses as in records, and records dials to them."""

    def __init__(self) -> None:
        self._dials, self._count = DialPolicy(()), 0
        seeds = [
            f"/{kind}/{host}/tcp/4001/p2p/{OWNER.peer_id}".encode()
            for kind in ("ip4", "ip6", "dns4", "unix")
            for host in ("192.0.2.1", "10.0.0.1", "::1", "2001:db8::1", "fe80::1%eth0", "example")
        ]
        super().__init__(seeds, self._read, remake=[self._odd])

    def _odd(self, rng: Random) -> bytes:
        parts = rng.choices((*TEXTS, "ip4", "tcp", "192.0.2.1", "p2p", "2001:db8::1"), k=6)
        return "/".join(("", *parts)).encode(errors="replace")

    def _read(self, data: bytes) -> bool:
        text, self._count = data.decode(errors="replace"), self._count + 1
        is_local(host_of(text))
        address_block(text)
        now = self._count / 100
        self._dials.note(text, now, answered=False)
        self._dials.allowed([text], [text], now)
        peer_id_from_bytes(data[:64])
        ipv4_of(data)
        try:
            return bool(check_peer_address(text))
        except ValueError:
            return False

    def check(self) -> None:
        for table in self._dials.tables:
            if len(table) > HOSTS_MAX:
                raise BrokenBoundError(f"{len(table)} hosts")


def certificate(owner: Identity, extensions: int = 1) -> bytes:
    """Return a libp2p TLS certificate in DER, with its extension ``extensions`` times."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    named = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    signature = owner.sign(b"libp2p-tls-handshake:" + named)
    inner = b"\x04\x24\x08\x01\x12\x20" + owner.public_key + b"\x04\x40" + signature
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    oid, now = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1"), datetime(2024, 1, 1, tzinfo=UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(5)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
    )
    value = b"\x30" + bytes((len(inner),)) + inner
    other = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.2")
    for one in (oid, other)[:extensions]:
        builder = builder.add_extension(x509.UnrecognizedExtension(one, value), critical=True)
    der = builder.sign(key, SHA256()).public_bytes(Encoding.DER)
    # No certificate builder writes one extension twice.
    return der.replace(bytes.fromhex("83a25a0102"), bytes.fromhex("83a25a0101"))


def _tls() -> Decoder:
    seeds = [certificate(OWNER, count) for count in (1, 0, 2)]
    # Another algorithm of the same length.
    curve = bytes.fromhex("06082a8648ce3d030107")
    seeds.append(seeds[0].replace(curve, b"\x06\x08" + b"\x2a" * 8))
    refusals = (ValueError, InvalidSignature)
    return Decoder(seeds, lambda data: bool(key_of(data)), refusals)


# HTTP


def _http_answers() -> Decoder:
    head = (
        b"HTTP/1.1 206 Partial Content\r\ncontent-length: 100\r\nconnection: keep-alive\r\n"
        b"content-range: bytes 0-99/1000\r\ncontent-type: application/octet-stream"
    )
    others = [head.replace(b"206", code) for code in (b"200", b"404", b"503", b"429", b"999")]
    odd = [
        head.replace(b"100\r", b"\xc2\xb9\xb2\r"),
        head + b"\r\ncontent-length: 1",
        head + b"\r\n:\r\nx",
    ]

    def read(data: bytes) -> bool:
        check_head(data, 0, 100)
        return True

    return Decoder([head, *others, *odd], read, (TransportError,))


def _http_ranges() -> Decoder:
    """Answer a request with these header lines."""
    resource = Resource(1000, lambda _offset, _count: None, etag=b'"abc"')  # type: ignore[arg-type]
    seeds = [
        b"range: bytes=0-99",
        b'range: bytes=-5\nif-range: "abc"',
        b'range: bytes=999-\nif-none-match: W/"abc", *',
        b"range: bytes=0-1,5-9",
        b"range: bytes=" + b"9" * 19 + b"-" + b"9" * 19,
        b"range: bytes=" + "\u0661-\u0669".encode(),
        b"if-none-match: *",
    ]

    def read(data: bytes) -> bool:
        headers = [tuple(line.partition(b": ")[::2]) for line in data.split(b"\n")]
        found = answer(resource, headers)
        if (
            found.status in (200, 206)
            and not 0 <= found.offset < found.offset + found.length <= 1000
        ):
            raise BrokenBoundError(f"{found.length} bytes from {found.offset} on of 1000")
        return found.status in (200, 206)

    return Decoder(seeds, read)


# Admission


def _work() -> Decoder:
    rules = AdmissionSection(rule="open", work_bits=4, work_kib=8)

    def read(data: bytes) -> bool:
        epoch = work_epoch(data)
        if epoch is None:
            return False
        return len(data) == WORK_BYTES and is_solved(rules, RUN, OWNER.peer_id, data)

    return Decoder([work_proof(3, nonce) for nonce in range(8)], read)


def _invite() -> Decoder:
    post = Correspondence()
    token = invite_token(post.of(Invite)[0].envelope)

    def remade(rng: Random) -> bytes:
        return invite_token(post.remade(rng.choice(post.of(Invite)), rng)).encode()

    def read(data: bytes) -> bool:
        return bool(read_invite(data.decode(errors="surrogateescape")))

    return Decoder([token.encode(), b"/etc", b"\0"], read, (ValueError,), [remade])


# Child processes, models and tasks


def _child_frames(names: Any) -> Decoder:
    said: list[wire.EngineMessage] = [
        wire.Hello(version=1, software="x"),
        wire.Item(id=1, value={"tokens": [1, 2], "logprobs": [-0.5]}),
        wire.Failed(id=None, error="ValueError", reason="x", trace=""),
        wire.EngineHeartbeat(memory_bytes=1, tokens=2),
        wire.FirstTokenNotice(version=1, seconds=0.5),
        wire.Call(id=1, method="load", arguments=(1, "x")),
        wire.CancelCall(id=1),
    ]
    seeds = [wire.encode(one, 1 << 16)[4:] for one in said if type(one).__name__ in names]
    values = [(type(one).__name__, one.model_dump()) for one in said if type(one).__name__ in names]
    change = Values([*names, 0, 2**63])

    def remade(rng: Random) -> bytes:
        return packed(change.changed(rng.choice(values), rng))

    def read(data: bytes) -> bool:
        return wire.decode(data, names) is not None

    return Decoder(seeds, read, (wire.WireError,), [remade])


def _model() -> Decoder:
    from roles.engines.architectures.configuration import (  # noqa: PLC0415 - takes seconds
        configuration,
    )

    values = {
        "model_type": "qwen2",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "tie_word_embeddings": True,
        "eos_token_id": [1, 2],
    }
    change = Values([0, 1, 2, 1e6, "linear", "yarn", "default", "rope_type", "rope_parameters"])

    def remade(rng: Random) -> bytes:
        return json.dumps(change.changed(values, rng), default=str).encode()

    def read(data: bytes) -> bool:
        try:
            given = json.loads(data)
        except (ValueError, RecursionError):
            return False
        if not isinstance(given, dict):
            return False
        return configuration("qwen2", given) is not None

    return Decoder([json.dumps(values).encode()], read, (ValueError,), [remade])


def _task_rows() -> Decoder:
    rows = [
        [{"input": "1\n", "output": "2\n"}],
        [{"assert": "assert answer.f(1) == 2"}],
    ]
    seeds = [json.dumps(row).encode() for row in rows]
    odd = [b"[" * 5000, b'[{"a":' * 3000, b"[" + b"9" * 5000 + b"]", b'["\\ud800"]']
    change = Values(["input", "output", "assert"])

    def remade(rng: Random) -> bytes:
        return json.dumps(change.changed(rng.choice(rows), rng), default=str).encode()

    def read(data: bytes) -> bool:
        return bool(read_tests(data.decode(errors="replace")))

    return Decoder([*seeds, *odd], read, (ValueError,), [remade])


def _completions() -> Decoder:
    seeds = [b"Here:\n```python\nprint(1)\n```\nand\n```py\nx\n```", b"```\n" * 100, b"\x1c```py\r"]

    def read(data: bytes) -> bool:
        return program_of(data.decode(errors="replace")) is not None

    return Decoder(
        seeds, read, remake=[lambda rng: mutated_bytes(rng.choice(seeds), rng, seeds, 4096)]
    )


TARGETS = (
    Target("directory-record", _Directory),
    Target("addresses", _Addresses),
    Target("tls-certificate", _tls),
    Target("http-answer-head", _http_answers),
    Target("http-ranges", _http_ranges),
    Target("proof-of-work", _work),
    Target("invite-token", _invite),
    Target("child-answers", lambda: _child_frames(wire.ANSWERS)),
    Target("child-questions", lambda: _child_frames(wire.QUESTIONS)),
    Target("model-config", _model),
    Target("task-rows", _task_rows),
    Target("completions", _completions),
)
