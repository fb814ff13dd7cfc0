"""``docs/protocol.md`` names every field of the code, with its types and bounds."""

import json
import re
from importlib import import_module

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator

from node.network.streams.protocols import STREAM_PROTOCOLS, topic_name
from protocol.core.codec import decode, encode
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Role, RunId, Topic
from protocol.gossipsub.params import Params
from protocol.messages import Message
from protocol.replica.received import TOPIC_KINDS
from protocol.run.loss import LossSection
from protocol.run.manifest import RunManifest
from protocol.run.policy import CHECK_VECTORS as ROUNDING_VECTORS
from protocol.run.sections import OuterSection, RuntimeSection
from protocol.shardcast.forest import ForestMember, ForestMembers, tree
from protocol.toploc.sampling import CHECK_VECTORS
from roles.environments.base import ENVIRONMENTS, environment
from tests.vectors.by_hand import Refused, canonical, parents
from tests.vectors.capture import PATH, capture
from tests.vectors.document import PAGE, TABLES, fields_of, number, plain

RUN = RunId(bytes(32))

MESSAGES = {kind.kind: kind for kind in Message.__subclasses__()}

SECTIONS = {
    name: field.annotation
    for name, field in RunManifest.model_fields.items()
    if hasattr(field.annotation, "model_fields")
}

MODELS = {
    **MESSAGES,
    **SECTIONS,
    "manifest": RunManifest,
    "runtime": RuntimeSection,
    "loss": LossSection,
    "outer": OuterSection,
}

every_model = pytest.mark.parametrize("name", MODELS)


def interval(schema: dict) -> str:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if most is None and below is None:
        return ""
    start = f"({above:.0f}" if least is None else f"[{whole(least)}"
    return f"{start}, {most:.0f}]" if below is None else f"{start}, {below:.0f})"


def whole(least: float) -> str:
    return f"{least:g}" if least % 1 else f"{least:.0f}"


def amount(schema: dict, least_key: str, most_key: str, unit: str) -> str:
    least, most = schema.get(least_key, 0), schema.get(most_key)
    if most is None:
        return ""
    if least == most:
        return f"{least} {unit}"
    return f"{least} to {most} {unit}" if least else f"at most {most} {unit}"


def described(schema: dict) -> tuple[str, str]:
    """Return type and bounds of a JSON schema in the words of the page."""
    if schema.get("anyOf", [])[1:] == [{"type": "null"}]:  # optional
        return described(schema["anyOf"][0])
    if "anyOf" in schema or "$ref" in schema or schema.get("type") == "object":
        return "map", ""
    if "enum" in schema or "const" in schema:
        return "text", " or ".join(schema.get("enum", [schema.get("const")]))
    kind = schema["type"]
    if kind == "array":
        if "prefixItems" in schema:
            items = [described(item) for item in schema["prefixItems"]]
            assert len(set(items)) == 1
            (item_kind, item_bounds), size = items[0], ""
        else:
            item_kind, item_bounds = described(schema["items"])
            size = amount(schema, "minItems", "maxItems", "items")
        each = f"each {item_bounds}" if item_bounds else ""
        return f"array of {item_kind}", ", ".join(filter(None, (size, each)))
    if kind == "string" and schema.get("format") == "binary":
        return "bytes", amount(schema, "minLength", "maxLength", "bytes")
    if kind == "string":
        size = amount(schema, "minLength", "maxLength", "characters")
        return "text", ", ".join(filter(None, (size, schema.get("pattern", ""))))
    return {"integer": "int", "number": "float", "boolean": "bool"}[kind], interval(schema)


@every_model
def test_every_field_is_documented_with_its_type_and_bounds(name):
    model, rows = MODELS[name], fields_of(name)
    schemas = model.model_json_schema()["properties"]
    assert list(rows) == list(model.model_fields)
    for field, schema in schemas.items():
        kind, bounds = described(schema)
        checked = any(isinstance(one, AfterValidator) for one in model.model_fields[field].metadata)
        if kind == "bytes" and checked:
            bounds = "0 or 32 bytes"
        assert (rows[field]["type"], plain(rows[field]["bounds"])) == (kind, bounds), field
        assert rows[field].keys() == {"field", "type", "bounds", "meaning"}


def test_roles_are_documented():
    assert set(re.findall(r"[a-z]+", fields_of("node-record")["roles"]["meaning"])) == set(Role)


def test_limits_are_the_constants_that_they_name():
    (limits,) = (table for table in TABLES["3. Signed messages"] if "constant" in table[0])
    assert len(limits) > 10
    for row in limits:
        module, _, constant = row["constant"].rpartition(".")
        assert number(row["value"]) == getattr(import_module(module), constant), row["limit"]


def test_gossip_parameters_are_the_constants_that_they_name():
    (rows,) = TABLES["Parameters"]
    for row in rows:
        values = [str(getattr(Params(), name)) for name in row["constant"].split(", ")]
        assert [float(item) for item in row["value"].split(", ")] == list(map(float, values))


def test_every_topic_is_documented_with_its_name_and_kinds():
    rows = {row["topic"]: row for row in TABLES["12. Gossip"][0]}
    assert set(rows) == set(Topic)
    for topic, kinds in TOPIC_KINDS.items():
        wire = rows[topic]["name on the wire"].replace("<run id in hexadecimal>", RUN.hex())
        names = ", ".join(kind.kind for kind in kinds)
        assert (wire, rows[topic]["kind"]) == (topic_name(topic, RUN), names)


def test_every_stream_protocol_is_documented_with_its_limits():
    rows = {row["protocol"]: row for row in TABLES["13. Streams"][0]}
    assert set(rows) == {protocol.word for protocol in STREAM_PROTOCOLS}
    for protocol in STREAM_PROTOCOLS:
        seconds, per_second = protocol.exchange_seconds, protocol.streams_per_second
        assert list(rows[protocol.word].values()) == [
            protocol.word,
            protocol.name,
            protocol.speaks_first,
            protocol.framing,
            str(protocol.opener_bytes_max),
            str(protocol.acceptor_bytes_max),
            str(protocol.streams_per_peer),
            str(protocol.streams_total),
            "none" if per_second is None else f"{per_second:g}",
            str(protocol.streams_burst),
            f"{protocol.stall_seconds:g}",
            "none" if seconds is None else f"{seconds:g}",
        ]
        assert f"### `{protocol.word}`" in PAGE.read_text() or protocol.word == "gossip"


def test_every_fault_is_documented_with_its_blame():
    rows = fields_of("Fault codes")
    assert {code: row["blame"] for code, row in rows.items()} == {
        str(code): code.blame.name.lower() for code in FaultCode
    }
    assert all(len(row["when"]) > 10 for row in rows.values())


def test_every_environment_is_documented():
    rows = {row["name"]: row for row in TABLES["Environments over characters"][0]}
    assert set(rows) == set(ENVIRONMENTS)
    for name, row in rows.items():
        characters = re.sub(r"</?code>", "", row["characters"]).replace("&nbsp;", " ")
        assert characters == environment(name).characters


def test_the_vectors_of_the_noise_are_those_that_engines_check():
    (table,) = TABLES["Sampling noise"]
    places = [(int(row["seed"]), int(row["position"]), int(row["token"])) for row in table]
    bits = [int(row["bits"], 16) for row in table]
    assert [(*place, value) for place, value in zip(places, bits, strict=True)] == [*CHECK_VECTORS]


def test_the_vectors_of_the_rounding_are_those_of_the_code():
    (table,) = TABLES["Rounding of policies"]
    rows = [
        (int(row["byte of the run id"], 16), row["tensor"], int(row["index"]), int(row["u"], 16))
        for row in table
    ]
    assert rows == [*ROUNDING_VECTORS]


def test_links_within_the_page_lead_somewhere():
    text = PAGE.read_text()
    headings = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    anchors = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}
    assert set(re.findall(r"\(#([^)]+)\)", text)) <= anchors
    assert max(map(int, re.findall(r"section (\d+)", text))) <= 17


def test_captured_bytes_are_what_the_code_makes_today():
    """On failure: ``.venv/bin/python -m tests.vectors.capture``, and section 17 of the page."""
    assert json.loads(PATH.read_text()) == capture()


# Canonical encoding: the independent reader and the project's

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()

VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


def listed(value):
    """Return a value with lists for tuples, which both sides may use."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return [listed(item) for item in value] if isinstance(value, list | tuple) else value


@given(VALUES)
def test_what_ours_writes_is_read_by_hand(value):
    assert canonical(encode(value)) == value


@settings(max_examples=500)
@given(st.binary(max_size=24) | VALUES.map(encode), st.integers(0, 40), st.binary(max_size=3))
@example(b"\x82\xa1b\x01\xa1a\x02", 0, b"")  # keys out of order
@example(b"\x91" * 15 + b"\xc0", 0, b"")
@example(b"\x91" * 16 + b"\xc0", 0, b"")
@example(b"\x91" * 15 + b"\x90", 0, b"")
@example(b"\x91" * 16 + b"\x90", 0, b"")
def test_what_ours_refuses_is_refused_by_hand_and_nothing_else(data, place, splice):
    """Inputs include valid values with some bytes replaced."""
    spoilt = data[:place] + splice + data[place + len(splice) :]
    ours = decode(spoilt, bytes_max=1 << 16)
    try:
        by_hand = canonical(spoilt)
    except Refused:
        assert isinstance(ours, Fault)
    else:
        assert not isinstance(ours, Fault)
        assert repr(listed(ours)) == repr(by_hand)


# The forest


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=24),
    st.binary(min_size=32, max_size=32),
    st.integers(1, 5),
    st.integers(2, 4),
)
@example([(1, True, True), (1000, True, True), *[(1, True, True)] * 22], bytes(32), 1, 2)
@example([(1, True, True)] * 70, bytes(32), 3, 2)  # more than are dealt evenly
@example([(9, True, number < 9) for number in range(24)], bytes(32), 2, 2)  # new nodes
def test_the_forest_is_the_one_that_the_page_describes(members, version, stripes, fanout):
    named = [(f"peer {n}", *member) for n, member in enumerate(members)]
    ours = [ForestMember(*member) for member in named]
    for stripe in range(stripes):
        place = version, stripe, stripes, fanout
        assert tree(ForestMembers(ours), "peer 0", *place).parents == parents(
            named, "peer 0", *place
        )
