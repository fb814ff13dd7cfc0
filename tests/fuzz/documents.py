"""Decoders of single documents: canonical values, manifests, bundles, gossip frames and RPCs."""

from random import Random
from typing import Any

import tomlkit

from node.process.join_prompt import offer
from protocol.consensus.council import encode_chain
from protocol.core import codec
from protocol.core.crypto import signing_bytes, verify
from protocol.core.faults import Fault
from protocol.core.types import Role
from protocol.gossipsub.message import (
    GossipMessage,
    decode_message,
    encode_message,
    sign_message,
    verify_message,
)
from protocol.gossipsub.rpc import (
    Deframer,
    IHave,
    Prune,
    Rpc,
    Subscription,
    decode_rpc,
    encode_rpc,
    frame,
    length_field,
    only_message,
    uvarint,
)
from protocol.replica.replica import Replica
from protocol.run.manifest import decode_signed_manifest, load_signed_manifest
from protocol.run.model_files import decode_bundle, encode_bundle
from protocol.run.toml import ManifestError, load_recipe
from tests.fuzz.mutation import Values, mutated_bytes
from tests.fuzz.target import Decoder, Target
from tests.vectors import core_reference, made
from tests.worlds.messages import RECIPE, identity
from tests.worlds.page_book import fast_output, fast_verify

TOPIC = "prime-node/2/" + "ab" * 32 + "/commits"


def packed(value: Any) -> bytes:
    """Return canonical bytes; those of None for a value without an encoding."""
    try:
        return codec.encode(value)
    except (TypeError, ValueError, OverflowError):
        return b"\xc0"


def _codec() -> Decoder:
    values = [value for value in core_reference.VALUES if value is not None]

    def read(data: bytes) -> bool:
        value = codec.decode(data, bytes_max=64 * 1024)
        return not isinstance(value, Fault) and codec.encode(value) == data

    change = Values(values)
    remake = [lambda rng: packed(change.changed(rng.choice(values), rng))]
    return Decoder([codec.encode(value) for value in values], read, remake=remake)


def _manifest() -> Decoder:
    values = made.MANIFEST.model_dump(mode="json")
    change = Values([0, 1, 2, 0.5, "open", "invite", made.CREATOR.peer_id])

    def remade(rng: Random) -> bytes:
        body = packed(change.changed(values, rng))
        run_id = codec.encode(None) if rng.random() < 0.05 else made.digest(body)
        signature = made.CREATOR.sign(signing_bytes("run-manifest", run_id, body))
        return codec.encode({"manifest": body, "signature": signature})

    def read(data: bytes) -> bool:
        signed = decode_signed_manifest(data, verify)
        return not isinstance(signed, Fault) and bool(offer(signed.manifest, [Role.INFERENCE]))

    return Decoder([made.SIGNED_MANIFEST.encoded()], read, remake=[remade])


def _toml_changes(text: str) -> Any:
    values = tomlkit.parse(text).unwrap()
    change = Values([0, 1, 0.5, "open"])

    def remade(rng: Random) -> bytes:
        try:
            return tomlkit.dumps(change.changed(values, rng)).encode(errors="replace")
        except (TypeError, ValueError, AttributeError):  # no TOML for this value
            return text.encode()

    rng = Random(0)
    ready = [remade(rng) for _ in range(100)]  # writing one takes three times as long as reading it
    return lambda rng: rng.choice(ready)


_ODD_TOML = (
    b"a = " + b"[" * 400 + b"]" * 400,
    b"a = " + b"[" * 3000,
    b"a = " + b"{b = " * 3000,
    b"a." * 3000 + b"a = 1",
    (b"a." * 14 + b"a = {") * 75 + b"}" * 75,
    b"a = " + b"9" * 5000,
    b"a = 0x" + b"f" * 5000,
    b"a = 1e999999",
    b"a = 9999-12-31T23:59:59.999999999Z",
    b"a = 0001-01-01T00:00:00+14:00",
    b'a = "\\ud800"',
)


def _recipe() -> Decoder:
    text = RECIPE.read_text()

    def read(data: bytes) -> bool:
        load_recipe(data.decode(errors="replace"))
        return True

    seeds = (text.encode(), *_ODD_TOML)
    return Decoder(seeds, read, (ManifestError,), [_toml_changes(text)])


def _manifest_toml() -> Decoder:
    values = made.MANIFEST.model_dump(mode="json")
    text = tomlkit.dumps({"signature": made.SIGNED_MANIFEST.signature.hex(), **values})

    def read(data: bytes) -> bool:
        load_signed_manifest(data.decode(errors="replace"), verify)
        return True

    return Decoder((text.encode(), *_ODD_TOML), read, (ManifestError,), [_toml_changes(text)])


def _bundle() -> Decoder:
    files = {"config.json": b"{}", "tokenizer.json": bytes(300), "vocab.json": b"[1]"}

    def read(data: bytes) -> bool:
        return not isinstance(decode_bundle(data), Fault)

    change = Values(["config.json", "../x", "merges.txt"])
    remake = [lambda rng: packed(change.changed(files, rng))]
    return Decoder([encode_bundle(files)], read, remake=remake)


def _chain() -> Decoder:
    """Read chains of notarised pages, mutated within their pages and votes as well."""
    chains = [
        encode_chain(made.BOOK.chain(first, last)) for first, last in ((1, 1), (1, 3), (2, 6))
    ]
    change = Values([0, b"", bytes(64), *chains])

    def remade(rng: Random) -> bytes:
        pages = [codec.decode(one, bytes_max=len(one)) for one in _list(rng.choice(chains))]
        return packed([packed(one) for one in change.changed(pages, rng) or ()])

    def read(data: bytes) -> bool:
        state = Replica(made.MANIFEST, fast_verify, fast_output)
        return not isinstance(state.intake.offer_chain(data), Fault)

    return Decoder(chains, read, remake=[remade])


def _list(chain: bytes) -> list[bytes]:
    value: Any = codec.decode(chain, bytes_max=len(chain))
    return list(value)


# Gossip


def rpcs() -> list[bytes]:
    message = encode_message(sign_message(identity("author"), TOPIC, bytes(200), 7))
    ids = tuple(bytes([number]) * 46 for number in range(40))
    return [
        encode_rpc(rpc)
        for rpc in (
            Rpc(),
            Rpc(subscriptions=(Subscription(True, TOPIC), Subscription(False, "other"))),
            Rpc(publish=(message,)),
            Rpc(publish=(message, message[:40], b"")),
            Rpc(ihave=(IHave(TOPIC, ids), IHave("", ())), iwant=ids),
            Rpc(graft=(TOPIC,), prune=(Prune(TOPIC, 60), Prune("x", 2**63))),
            Rpc((Subscription(True, TOPIC),), (message,), graft=(TOPIC, TOPIC)),
        )
    ]


def fields(rng: Random, depth: int = 3) -> bytes:
    """Return fields of a protobuf message, some with a wrong length."""
    parts = []
    for _ in range(rng.randrange(5)):
        number, choice = rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 15)), rng.random()
        if choice < 0.15:
            value = rng.choice((0, 1, 127, 128, 2**32, 2**63, 2**64 - 1, 2**64, 2**70))
            parts.append(uvarint(number << 3) + uvarint(value))
        elif choice < 0.25:
            parts.append(uvarint(number << 3 | rng.choice((1, 3, 4, 5, 6, 7))) + rng.randbytes(8))
        elif choice < 0.7 and depth:
            parts.append(length_field(number, fields(rng, depth - 1)))
        else:
            value = rng.choice((b"", TOPIC.encode(), b"\xff\xfe", bytes(46), rng.randbytes(200)))
            field = length_field(number, value)
            if rng.random() < 0.1:
                field = field[:1] + uvarint(rng.choice((0, 2**31, 2**64 - 1))) + field[2:]
            parts.append(field * (1 + int(rng.random() ** 8 * 300)))
    return b"".join(parts)


def _rpc() -> Decoder:
    def read(data: bytes) -> bool:
        only_message(data)
        return not isinstance(decode_rpc(data), Fault)

    return Decoder(rpcs(), read, remake=[fields])


def _frames() -> Decoder:
    """Read frames, split at the offset in the first byte."""
    seeds = [b"\x07" + b"".join(map(frame, rpcs())), *(b"\xff" + frame(rpc) for rpc in rpcs())]

    def read(data: bytes) -> bool:
        deframer, step = Deframer(), 1 + (data[0] if data else 0)
        for start in range(1, len(data), step):
            if isinstance(deframer.feed(data[start : start + step]), Fault):
                return False
        return not deframer.unfinished

    return Decoder(seeds, read)


def _message() -> Decoder:
    """Read StrictSign messages: valid, signed again, or with a bad signature."""
    author = identity("author")
    seeds = [encode_message(sign_message(author, TOPIC, bytes([n]) * 50, n)) for n in range(4)]

    def remade(rng: Random) -> bytes:
        topic = rng.choice((TOPIC, "", "x" * 128, "x" * 129, "é\0"))
        message = sign_message(author, topic, rng.randbytes(rng.randrange(60)), rng.getrandbits(64))
        if rng.random() < 0.3:
            other = mutated_bytes(message.source, rng, seeds, 60)
            message = GossipMessage(other, message.data, message.seqno, topic, message.signature)
        return encode_message(message)

    def read(data: bytes) -> bool:
        message = decode_message(data)
        return not isinstance(message, Fault) and verify_message(message, verify)

    return Decoder(seeds, read, remake=[remade, fields])


TARGETS = (
    Target("codec", _codec),
    Target("manifest", _manifest),
    Target("manifest-toml", _manifest_toml),
    Target("recipe-toml", _recipe),
    Target("bundle", _bundle),
    Target("page-chain", _chain),
    Target("gossip-rpc", _rpc),
    Target("gossip-frames", _frames),
    Target("gossip-message", _message),
)
