"""Captured bytes match ``docs/protocol.md``, read without project imports.

``messages.json`` was captured from the code by ``python -m tests.vectors.capture``.
"""

import hashlib
import json
import re
import struct
from pathlib import Path

import msgpack
import pytest

from tests.vectors import vrf_by_hand
from tests.vectors.by_hand import (
    PEER_ID_PREFIX,
    Reader,
    Refused,
    canonical,
    decoded_weights,
    digest,
    domain,
    key_of,
    opened,
    protobuf,
    rpcs,
    verify,
)
from tests.vectors.document import PAGE, PARTS, TABLES, require_table

VECTORS = json.loads(Path(__file__).with_name("messages.json").read_text())
MESSAGES = VECTORS["messages"]
RUN_ID = bytes.fromhex(VECTORS["run_id"])

every_kind = pytest.mark.parametrize("kind", MESSAGES)


def envelope(kind: str) -> bytes:
    return bytes.fromhex(MESSAGES[kind]["envelope"])


def read(kind: str) -> dict:
    """Return the fields of the captured message of a kind."""
    return opened(envelope(kind), RUN_ID)[3]


def message_id(kind: str) -> bytes:
    return opened(envelope(kind), RUN_ID)[2]


def in_hex(value):
    if isinstance(value, dict):
        return {key: in_hex(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_hex(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


# Messages


def test_every_kind_of_the_page_is_captured():
    section = PAGE.read_text().partition("\n## 5. ")[2].partition("\n## 6. ")[0]
    kinds = set(re.findall(r"^#### `(.+)`$", section, re.MULTILINE))
    assert set(MESSAGES) == kinds - set(PARTS.values())


@every_kind
def test_an_envelope_opens_and_says_what_the_code_meant(kind):
    said, signer, name, fields = opened(envelope(kind), RUN_ID)
    assert said == kind
    assert len(key_of(signer)) == 32
    assert name.hex() == MESSAGES[kind]["id"]
    assert in_hex(fields) == MESSAGES[kind]["fields"]


@every_kind
def test_a_payload_has_the_fields_of_its_table(kind):
    require_table(read(kind), kind)


@every_kind
def test_an_envelope_of_another_run_or_with_another_byte_is_refused(kind):
    data = envelope(kind)
    with pytest.raises(Refused):
        opened(data, bytes(32))
    for place in (data.index(b"signature") + 20, len(data) - 1):
        with pytest.raises((Refused, ValueError)):
            opened(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], RUN_ID)


def test_messages_name_each_other_and_their_files():
    commit, body, index = read("rollout-commit"), bytes.fromhex(VECTORS["body"]), VECTORS["index"]
    assert (commit["body"], commit["body_bytes"]) == (digest(body), len(body))
    checkpoint = read("checkpoint-manifest")
    assert checkpoint["batch"] == [message_id("rollout-commit")]
    assert checkpoint["parent"] == commit["checkpoint"]
    assert checkpoint["index"] == digest(bytes.fromhex(index))


def test_a_version_shows_the_plan_and_the_results_of_its_round():
    _, signer, _, version = opened(bytes.fromhex(VECTORS["version_of_round"]), RUN_ID)
    require_table(version, "checkpoint-manifest")
    made, trainers = version["round"], signed_manifest()[0]["genesis"]["trainers"]
    names = ("parent", "term", "batch", "page", "omitted", "reloaded")
    plan = {name: version[name] for name in names}
    plan |= {"planned_at": made["planned_at"], "trainers": made["trainers"]}
    payload = msgpack.packb(dict(sorted(plan.items())))
    plan_id = digest(domain("round-plan", RUN_ID), signer.encode(), payload)
    assert plan_id == message_id("round-plan")
    (contribution,) = made["contributions"]
    result = {"plan": plan_id, **contribution}
    trainer, signature = trainers[result.pop("trainer")], result.pop("signature")
    assert result == read("round-result")
    signed = domain("round-result", RUN_ID) + msgpack.packb(dict(sorted(result.items())))
    verify(trainer, signed, signature)


def be64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def council() -> list[str]:
    manifest, *_ = signed_manifest()
    return sorted(manifest["genesis"]["validators"])


def ranked(purpose: bytes, seed: bytes, epoch: int) -> list[str]:
    """Return the council in the order for a purpose."""
    text = b"prime-node/" + purpose + seed + be64(epoch)
    return sorted(council(), key=lambda peer: digest(text, peer.encode()))


def alpha(seed: bytes, epoch: int) -> bytes:
    return b"prime-node/reveal" + RUN_ID + seed + be64(epoch)


def beacon(page=None) -> bytes:
    """Return the beacon of a page, or of the first one, computed from its reveals."""
    page = page or read("page")
    seed, epoch = page["seed"], page["epoch"]
    revealers = ranked(b"revealer", seed, epoch)[: len(page["reveals"])]
    outputs = [
        vrf_by_hand.output(key_of(peer), alpha(seed, epoch), proof)
        for peer, proof in zip(revealers, page["reveals"], strict=True)
        if proof
    ]
    assert len(outputs) >= 2
    assert all(outputs)
    return digest(b"prime-node/beacon", seed, be64(epoch), *outputs)


def test_the_first_page_is_by_its_proposer_with_proofs_of_its_revealers():
    manifest, *_ = signed_manifest()
    _, signer, _, page = opened(envelope("page"), RUN_ID)
    assert (page["epoch"], page["council"], page["parent"]) == (1, b"", b"")
    assert page["final_epoch"] == -1
    assert page["commits"] == [message_id("rollout-commit")]
    assert [page[name] for name in ("joined", "removed", "drawn", "seats", "certified")] == [[]] * 5
    assert page["seed"] == digest(b"prime-node/beacon", RUN_ID)
    assert signer == ranked(b"proposer", page["seed"], 1)[0]
    assert len(page["reveals"]) == manifest["council"]["revealers"]
    assert len(beacon()) == 32


def test_a_proof_of_another_key_or_place_is_refused_by_hand():
    page = read("page")
    peer, *others = ranked(b"revealer", page["seed"], 1)
    proof, text = page["reveals"][0], alpha(page["seed"], 1)
    assert vrf_by_hand.output(key_of(peer), text, proof)
    assert vrf_by_hand.output(key_of(others[0]), text, proof) is None
    assert vrf_by_hand.output(key_of(peer), alpha(page["seed"], 2), proof) is None
    assert vrf_by_hand.output(key_of(peer), text, proof[:40] + bytes(1) + proof[41:]) is None


def test_a_vote_names_its_page_and_what_the_page_names():
    _, signer, _, vote = opened(envelope("page-vote"), RUN_ID)
    page = read("page")
    assert signer in council()
    assert vote == {
        "epoch": page["epoch"],
        "council": page["council"],
        "page": message_id("page"),
        "parent": page["parent"],
    }


def test_a_reveal_is_for_the_child_of_a_page():
    _, signer, _, reveal = opened(envelope("reveal"), RUN_ID)
    assert (reveal["epoch"], reveal["parent"]) == (2, message_id("page"))
    assert signer in ranked(b"revealer", beacon(), 2)[: len(read("page")["reveals"])]
    assert vrf_by_hand.output(key_of(signer), alpha(beacon(), 2), reveal["proof"])


def test_a_chain_holds_pages_with_the_signatures_of_their_votes():
    data, _ = canonical(bytes.fromhex(VECTORS["chain"]))
    rows, fields = TABLES["Notarised pages"][0], canonical(data)
    assert list(fields) == [row["key"] for row in rows]
    assert fields["page"] == envelope("page")
    bits = int.from_bytes(fields["voters"], "little")
    voters = [peer for place, peer in enumerate(council()) if bits >> place & 1]
    assert len(voters) == 2 * len(council()) // 3 + 1
    signatures = Reader(fields["signatures"])
    payload = canonical(envelope("page-vote"))["payload"]
    for peer in voters:
        verify(peer, domain("page-vote", RUN_ID) + payload, signatures.take(64))
    assert signatures.ended


def test_a_certificate_holds_verdicts_of_the_committee_that_one_draws_by_hand():
    certificate, commit_id = read("certificate"), message_id("rollout-commit")
    manifest, *_ = signed_manifest()
    listing, drawing = map(canonical, canonical(bytes.fromhex(VECTORS["chain"])))
    assert listing["page"] == envelope("page")
    _, _, page_id, page = opened(drawing["page"], RUN_ID)
    assert (page["parent"], page["seed"]) == (message_id("page"), beacon())
    assert commit_id in read("page")["commits"]
    seed = beacon(page) + commit_id
    ranking = sorted(council(), key=lambda peer: digest(seed, peer.encode()))
    assert certificate["page"] == page_id
    signers = []
    for data in certificate["verdicts"]:
        kind, signer, _, verdict = opened(data, RUN_ID, 1024)
        assert (kind, verdict["commit"], verdict["accept"]) == ("verdict", commit_id, True)
        assert verdict["page"] == page_id
        assert len(verdict["witness"]) == len(verdict["replays"]) == 8
        signers.append(signer)
    assert signers == ranking[: manifest["committee"]["size"]]


def test_a_seal_is_that_of_the_verdict():
    kind, signer, _, verdict = opened(envelope("verdict"), RUN_ID, 1024)
    assert kind == "verdict"
    nonce = verdict["nonce"]
    payload = canonical(envelope("verdict"))["payload"]
    removed = b"\xa5nonce\xc4\x20" + nonce
    assert payload.count(removed) == 1
    assert payload[0] == 0x80 + len(verdict)
    content = bytes([payload[0] - 1]) + payload[1:].replace(removed, b"")
    seal = read("verdict-seal")
    assert seal["seal"] == digest(b"prime-node/verdict-seal", signer.encode(), nonce, content)
    assert (seal["commit"], seal["page"]) == (verdict["commit"], verdict["page"])


def test_evidence_holds_a_commit_and_two_verdicts_that_contradict_each_other():
    fields = read("evidence")
    kind, _, commit_id, _ = opened(fields["commit"], RUN_ID)
    assert kind == "rollout-commit"
    found = [opened(fields[name], RUN_ID, 1024) for name in ("first", "second")]
    assert {kind for kind, *_ in found} == {"verdict"}
    assert len({signer for _, signer, *_ in found}) == 1
    assert [verdict["commit"] for *_, verdict in found] == [commit_id, commit_id]
    assert [verdict["accept"] for *_, verdict in found] == [True, False]


def test_an_overturn_holds_signatures_of_the_same_objection():
    overturn, objection = read("overturn"), canonical(envelope("objection"))
    fields = read("objection")
    assert {name: overturn[name] for name in fields} == fields
    assert overturn["members"].bit_count() == len(overturn["signatures"]) == 2
    assert objection["signature"] in overturn["signatures"]
    signed = domain("objection", RUN_ID) + objection["payload"]
    verify(objection["signer"], signed, overturn["signatures"][0])


# The manifest


def signed_manifest() -> tuple[dict, bytes, bytes]:
    """Return the captured manifest, its bytes, and its signature."""
    outer = canonical(bytes.fromhex(VECTORS["manifest"]))
    assert list(outer) == ["manifest", "signature"]
    return canonical(outer["manifest"]), outer["manifest"], outer["signature"]


def test_a_manifest_names_its_run_and_is_signed_by_its_creator():
    manifest, data, signature = signed_manifest()
    assert digest(data) == RUN_ID
    verify(manifest["genesis"]["creator"], domain("run-manifest", RUN_ID) + data, signature)


def test_a_manifest_has_the_sections_of_the_page():
    manifest, *_ = signed_manifest()
    require_table(manifest, "manifest")
    for name, section in manifest.items():
        if isinstance(section, dict):
            require_table(section, name)


# Files


def test_a_body_is_laid_out_as_the_page_says():
    manifest, *_ = signed_manifest()
    sampling, toploc = manifest["sampling"], manifest["toploc"]
    body = bytes.fromhex(VECTORS["body"])
    sequences = canonical(body)
    commit = read("rollout-commit")
    assert len(sequences) == commit["sequences"]
    assert len(sequences) == sampling["group_size"] * sampling["prompts_per_rollout"]
    tokens_in_all = 0
    for sequence in sequences:
        assert list(sequence) == ["logprobs", "proofs", "reward", "tokens"]
        count = len(sequence["tokens"]) // 4
        tokens = struct.unpack(f"<{count}i", sequence["tokens"])
        logprobs = struct.unpack(f"<{count}f", sequence["logprobs"])
        assert tokens[-1] == manifest["model"]["config"]["eos_token_id"]
        assert all(value <= 0 for value in logprobs)
        assert sequence["reward"] in (0, 1_000_000)
        words = 1 + 2 * toploc["top_k"]
        for proof in sequence["proofs"]:
            assert len(proof) == 2 * words
        tokens_in_all += count
    assert tokens_in_all == commit["tokens"]
    chunks = -(-sampling["tokens_max"] // toploc["chunk_tokens"])
    largest = 8 * sampling["tokens_max"] + chunks * (7 + 2 * 2 * toploc["top_k"]) + 128
    assert len(body) <= len(sequences) * largest + 64


def test_an_index_names_shards_and_chunks():
    index, file = canonical(bytes.fromhex(VECTORS["index"])), bytes(range(256)) * 1200
    rows = {row["key"]: row for row in TABLES["The shard index"][0]}
    assert list(index) == list(rows)
    size, cut = index["shard_bytes"], index["chunk_bytes"]
    assert index["total_bytes"] == len(file)
    shards = [file[at : at + size] for at in range(0, len(file), size)]
    assert index["shards"] == [
        [
            digest(shard),
            b"".join(digest(shard[at : at + cut]) for at in range(0, len(shard), cut)),
        ]
        for shard in shards
    ]


def test_encodings_of_weights_make_the_file():
    files = {name: bytes.fromhex(data) for name, data in VECTORS["encodings"].items()}
    assert decoded_weights(files["full"]) == files["second"]
    patch = files["patch"]
    assert decoded_weights(patch, files["first"], digest(b"first")) == files["second"]
    assert len(patch) < len(files["second"])
    with pytest.raises(Refused):
        decoded_weights(patch, files["first"], digest(b"another"))


# Streams


def said(word: str) -> list[tuple[str, Reader]]:
    """Return the (side, reader) pairs of a stream protocol's exchange, in order."""
    exchange = VECTORS["streams"][word]
    row = next(row for row in TABLES["13. Streams"][0] if row["protocol"] == word)
    assert exchange["name"] == row["name"].replace("{run}", RUN_ID.hex()[:16])
    assert exchange["spoken"][0][0] == row["speaks first"]
    return [(side, Reader(bytes.fromhex(data))) for side, data in exchange["spoken"]]


def test_every_stream_protocol_is_captured():
    words = {row["protocol"] for row in TABLES["13. Streams"][0]}
    assert set(VECTORS["streams"]) == words - {"gossip"}


def test_the_manifest_stream():
    ((side, reader),) = said("manifest")
    assert side == "acceptor"
    assert reader.frame(4) == bytes.fromhex(VECTORS["manifest"])
    assert reader.ended


def test_the_message_stream():
    (_, asked), (side, answered) = said("message")
    assert asked.frame(4) == envelope("verdict")
    assert (side, answered.data) == ("acceptor", b"\x06")
    assert asked.ended


def test_the_sync_stream():
    (_, ask), (_, page), (_, choice), (_, sent) = said("sync")
    request = canonical(ask.frame(4))
    assert request == {"skip": 0, "version": 0}
    ids = canonical(page.frame(4))
    assert list(ids) == ["ids"]
    wanted = canonical(choice.frame(4))["ids"]
    assert wanted == ids["ids"]
    kinds = []
    for name in wanted:
        kind, _, found, _ = opened(sent.frame(4), RUN_ID)
        assert found == name
        kinds.append(kind)
    order = ["node-record", "evidence", "checkpoint-manifest", "rollout-commit", "certificate"]
    assert list(dict.fromkeys(kinds)) == order
    assert all(reader.ended for reader in (ask, page, choice, sent))


def test_the_pages_stream():
    (_, asked), (_, offered), (_, choice), (_, sent) = said("pages")
    assert canonical(asked.frame(4)) == {"council": b"", "epoch": -1, "skip": 0}
    first, second = canonical(bytes.fromhex(VECTORS["chain"]))
    _, _, newer, _ = opened(canonical(second)["page"], RUN_ID)
    assert canonical(offered.frame(4)) == {"chains": 0, "ids": [message_id("page"), newer]}
    assert canonical(choice.frame(4)) == {"ids": [message_id("page"), newer]}
    assert canonical(sent.frame(4)) == [first]
    assert canonical(sent.frame(4)) == [first, second], "the page before it lists its commits"
    assert all(reader.ended for reader in (asked, offered, choice, sent))


def test_the_ledger_stream():
    """The page of epoch 6 is the newest final one; that of epoch 5 certifies the commit."""
    (_, asked), (_, sent) = said("ledger")
    request = canonical(asked.frame(4))
    assert canonical(sent.frame(4)) == {"frames": request["count"]}
    frames = [canonical(sent.frame(4)) for _ in range(request["count"])]
    assert asked.ended and sent.ended
    (newest, nothing), (deciding, work) = frames
    _, _, newest_id, newer = opened(newest, RUN_ID)
    _, _, page_id, page = opened(deciding, RUN_ID)
    assert (request["page"], request["epoch"]) == (newest_id, 0)
    assert (newer["epoch"], newer["parent"], newer["work"], nothing) == (6, page_id, b"", b"")
    assert (page["epoch"], page["work"]) == (5, digest(work))
    assert page["certified"] == [message_id("rollout-commit")]
    assert receipts_by_hand(page) == canonical(work)
    header = {"beacons": {"0": beacon()}, "epoch": 4, "page": page["parent"], "head": page["head"]}
    header |= dict.fromkeys(("rollouts", "tokens", "credit", "steps"), 0)
    header_leaf = msgpack.packb(dict(sorted(header.items())))
    assert newer["final_epoch"] == 4
    assert newer["ledger"] == digest(b"\x00", header_leaf), "no account yet"


def receipts_by_hand(page):
    """Return the work of a page that certifies the captured commit."""
    _, signer, commit_id, commit = opened(envelope("rollout-commit"), RUN_ID)
    _, drawing = map(canonical, canonical(bytes.fromhex(VECTORS["chain"])))
    seed = beacon(opened(drawing["page"], RUN_ID)[3]) + commit_id
    ranking = sorted(council(), key=lambda peer: digest(seed, peer.encode()))
    (bits,) = page["checkers"]
    checkers = sorted(key_of(peer) for place, peer in enumerate(ranking) if bits >> place & 1)
    fields = [commit[name] for name in ("version", "slot", "evaluation", "tokens")]
    assert len(checkers) == 2, "the first committee"
    receipt = [commit_id, key_of(signer), *fields, "accepted", checkers]
    return {"overturned": [], "receipts": [receipt], "steps": []}


def test_the_blobs_stream():
    (_, asked), (_, answered) = said("blobs")
    request, header = canonical(asked.frame(2)), canonical(answered.frame(2))
    request_rows, header_rows = TABLES["blobs"]
    assert list(request) == [row["key"] for row in request_rows]
    assert list(header) == [row["key"] for row in header_rows]
    body = bytes.fromhex(VECTORS["body"])
    assert request["digest"] == digest(body)
    assert header == {"status": "ok", "total_bytes": len(body)}
    assert answered.data[answered.at :] == body[request["offset"] :][: request["length"]]


def test_the_dial_back_stream():
    (_, asked), (side, answered), (_, sample) = said("dial-back")
    host, separator, peer = asked.frame(2).decode().partition("/tcp/4001/p2p/")
    assert (host, separator) == ("/ip4/192.0.2.1", "/tcp/4001/p2p/")
    assert peer.startswith("12D3KooW")
    assert (side, answered.data) == ("acceptor", b"\x01")
    assert len(sample.data) == 100


def test_the_hop_stream():
    (_, asked), (side, answered) = said("hop")
    assert asked.data == bytes((2, 8, 0)), "RESERVE"
    assert side == "acceptor"
    assert answered.data[0] == len(answered.data) - 1
    fields = protobuf(answered.data[1:])
    kept, limit = protobuf(fields[3][0]), protobuf(fields[4][0])
    assert (fields[1], fields[5]) == ([2], [100]), "STATUS, OK"
    assert kept == {1: [1_700_000_001 + 600]}, "ten minutes after it was asked for"
    assert limit == {1: [600], 2: [64 << 20]}


# Gossip


def test_gossip():
    """Both send hello; then GRAFT, a lost message, its IHAVE and IWANT, the message, and PRUNE."""
    topic = VECTORS["gossip"]["topic"]
    names = [row["name on the wire"] for row in TABLES["12. Gossip"][0]]
    assert topic in [name.replace("<run id in hexadecimal>", RUN_ID.hex()) for name in names]
    heard = [
        (side, protobuf(rpc))
        for side, data in VECTORS["gossip"]["spoken"]
        for rpc in rpcs(bytes.fromhex(data))
    ]
    one, other = "opener", "acceptor"
    assert [side for side, _ in heard] == [one, other, one, one, one, other, one, other]
    hello, hello_back, graft, lost, ihave, iwant, served, leave = (fields for _, fields in heard)
    for fields in (hello, hello_back):
        assert protobuf(fields[1][0]) == {1: [1], 2: [topic.encode()]}
    assert control(graft, 3) == {1: [topic.encode()]}
    assert lost == served
    message = read_message(served[2][0], topic)
    name = message[1][0] + message[3][0]
    assert control(ihave, 1) == {1: [topic.encode()], 2: [name]}
    assert control(iwant, 2) == {1: [name]}
    assert protobuf(leave[1][0]) == {1: [0], 2: [topic.encode()]}
    assert control(leave, 4) == {1: [topic.encode()], 3: [10]}


def control(fields: dict, number: int) -> dict:
    """Return the one entry of a control message."""
    ((found, entries),) = protobuf(fields[3][0]).items()
    assert found == number
    return protobuf(entries[0])


def read_message(data: bytes, topic: str) -> dict:
    """Return the fields of a gossiped message after checking its form."""
    message = protobuf(data)
    assert list(message) == [1, 2, 3, 4, 5]
    assert message[4] == [topic.encode()]
    assert len(message[3][0]) == 8
    source, signature = message[1][0], message[5][0]
    unsigned = data[: -len(signature) - 2]
    assert source.startswith(PEER_ID_PREFIX)
    assert len(source) == 38
    verify(base58_of(source), b"libp2p-pubsub:" + unsigned, signature)
    assert message[2] == [envelope("rollout-commit")]
    return message


def base58_of(raw: bytes) -> str:
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = alphabet[digit] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text


# Directory


def test_a_directory_record_is_signed_by_its_owner():
    found = VECTORS["directory"]
    subkey, value = bytes.fromhex(found["subkey"]), bytes.fromhex(found["value"])
    value, signature = value[:-64], value[-64:]
    owner = canonical(subkey)
    place = digest(b"prime-node/bucket", RUN_ID, owner.encode())
    assert found["key"] == f"{RUN_ID.hex()}/members/5/{place[0] >> 3}"
    key = found["key"].encode()
    key_id = hashlib.sha1(b"\xd9" + bytes([len(key)]) + key).digest()
    expiry = struct.pack(">d", found["expires_at"])
    payload = b"\x94\xc4\x14" + key_id + b"\xc4" + bytes([len(subkey)]) + subkey
    payload += b"\xc5" + len(value).to_bytes(2, "big") + value + b"\xcb" + expiry
    verify(owner, domain("directory-record", RUN_ID) + payload, signature)
    kind, signer, _, _ = opened(canonical(value), RUN_ID)
    assert (kind, signer) == ("node-record", owner)


# Canonical encoding


@pytest.mark.parametrize(
    "spelling",
    [
        "cc7f",  # 127 in two bytes
        "cd00ff",
        "d0e0",  # -32 in two bytes
        "d10001",  # a positive number as a signed one
        "ca3f800000",  # binary32
        "cb7ff8000000000000",  # NaN
        "cb7ff0000000000000",  # infinity
        "d90161",  # one character with a length byte
        "a1ff",  # not UTF-8
        "c50001aa",
        "dc0000",
        "de0000",
        "82a16201a16102",  # b before a
        "82a16101a16101",  # a twice
        "8101c0",  # a key that is a number
        "81c40161c0",  # a key that is bytes
        "c1",
        "d40000",  # an extension
        "d6ff00000000",  # a time
        "01" + "02",  # two values
        "91",
        "",
        "91" * 16 + "c0",  # 16 levels
        "91" * 16 + "90",
    ],
)
def test_another_spelling_is_refused(spelling):
    with pytest.raises(Refused):
        canonical(bytes.fromhex(spelling))


def test_as_deep_as_the_page_allows_is_read():
    assert canonical(bytes.fromhex("91" * 15 + "c0"))
    assert canonical(bytes.fromhex("91" * 15 + "90"))
