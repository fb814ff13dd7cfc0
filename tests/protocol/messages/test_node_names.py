import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import encode
from protocol.core.crypto import signing_bytes, verify
from protocol.core.faults import Fault, FaultCode
from protocol.messages import NodeRecord, Signed, check_node_name, open_envelope
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest())
WORKER = WORLD.workers[0]

GOOD = [
    "",
    "a",
    "Ada Lovelace",
    "x" * 32,
    "<b>&amp;</b> [red]'\"`",  # text of a page or a terminal is escaped where it is shown
    "Éva Kovács",
    "Βασίλης, Иван",
    "田中 太郎",
    "김철수",
    "नेहा",
    "שרה",
    "q\u0323\u0307",  # two marks that no composed character has
    "-1",
    "☃",
]

BAD = [
    ("x" * 33, "at most 32 characters"),
    (" a", "neither begins nor ends with a space"),
    ("a ", "neither begins nor ends with a space"),
    (" ", "neither begins nor ends with a space"),
    ("E\u0301va", "composed form"),
    ("\u212b", "composed form"),
    ("a\nb", "U+000A"),
    ("a\tb", "U+0009"),
    ("\x1b[31mred", "U+001B"),
    ("a\x00", "U+0000"),
    ("a\x7f", "U+007F"),
    ("a\x9b31m", "U+009B"),
    ("a\u00a0b", "U+00A0"),
    ("a\u3000b", "U+3000"),
    ("a\u2028b", "U+2028"),
    ("\u202egnp.exe", "U+202E"),
    ("a\u2066b\u2069", "U+2066"),
    ("a\u200fb", "U+200F"),
    ("a\u061cb", "U+061C"),
    ("a\u200bb", "U+200B"),
    ("a\u200db", "U+200D"),
    ("a\ufeffb", "U+FEFF"),
    ("a\u00adb", "U+00AD"),
    ("a\ufe0fb", "U+FE0F"),
    ("a\u034fb", "U+034F"),
    ("\u3164", "U+3164"),
    ("\u115f", "U+115F"),
    ("\u2800", "U+2800"),
    ("\U000e0041", "U+E0041"),
    ("\ue000", "U+E000"),
    ("\ud800", "U+D800"),
    ("\u0378", "U+0378"),
    ("\U0001fae0", "U+1FAE0"),
    ("\u0301a", "at most 2 combining marks"),
    ("q\u0323\u0307\u0302", "at most 2 combining marks"),
]


def with_name(name: str) -> bytes:
    """Return a record with a valid signature and this name, valid or not."""
    record = WORLD.record(WORKER, ("inference",)).message
    payload = encode(record.model_dump() | {"name": name})
    signature = WORKER.sign(signing_bytes(NodeRecord.kind, WORLD.run_id, payload))
    signer = WORKER.peer_id
    return encode(
        {"kind": NodeRecord.kind, "payload": payload, "signature": signature, "signer": signer}
    )


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_taken_as_it_is(name):
    assert check_node_name(name) == name
    signed = WORLD.record(WORKER, ("inference",), name=name)
    opened = open_envelope(signed.envelope, NodeRecord, WORLD.run_id, verify)
    assert isinstance(opened, Signed) and opened.message.name == name


@pytest.mark.parametrize(("name", "reason"), BAD, ids=ascii)
def test_a_bad_name_is_refused_with_a_printable_reason(name, reason):
    with pytest.raises(ValueError, match=reason.replace("+", r"\+")) as caught:
        check_node_name(name)
    assert str(caught.value).isascii() and str(caught.value).isprintable()


@pytest.mark.parametrize("name", [name for name, _ in BAD if name.isprintable() or "\x1b" in name])
def test_a_record_of_another_node_with_a_bad_name_is_a_fault(name):
    fault = open_envelope(with_name(name), NodeRecord, WORLD.run_id, verify)
    assert fault == Fault(FaultCode.BAD_FIELDS, "name")


def test_a_record_without_a_name_has_no_such_field():
    signed = WORLD.record(WORKER, ("inference",))
    assert "name" not in signed.message.model_dump()
    written = open_envelope(with_name(""), NodeRecord, WORLD.run_id, verify)
    assert written == Fault(FaultCode.NOT_CANONICAL)


@given(st.text(max_size=40))
def test_every_accepted_name_is_one_printable_line_in_normal_form(name):
    try:
        check_node_name(name)
    except ValueError:
        return
    assert len(name) <= 32 and name.isprintable() and name == name.strip()
    assert unicodedata.is_normalized("NFC", name)
    directions = {unicodedata.bidirectional(one) for one in name}
    assert not directions & {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN"}
