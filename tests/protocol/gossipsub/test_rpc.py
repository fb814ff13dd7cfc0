import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.faults import Fault, FaultCode
from protocol.gossipsub.rpc import (
    FIELDS_MAX,
    MESSAGE_ID_BYTES_MAX,
    RPC_BYTES_MAX,
    TOPIC_BYTES_MAX,
    IHave,
    Prune,
    Rpc,
    Subscription,
    decode_rpc,
    encode_rpc,
    length_field,
    uvarint,
)

topics = st.text(max_size=TOPIC_BYTES_MAX // 4)
ids = st.binary(max_size=MESSAGE_ID_BYTES_MAX)


def tuples(each):
    return st.lists(each, max_size=4).map(tuple)


rpcs = st.builds(
    Rpc,
    subscriptions=tuples(st.builds(Subscription, st.booleans(), topics)),
    publish=tuples(st.binary(max_size=300)),
    ihave=tuples(st.builds(IHave, topics, tuples(ids))),
    iwant=tuples(ids),
    graft=tuples(topics),
    prune=tuples(st.builds(Prune, topics, st.integers(0, 2**64 - 1))),
)


@given(rpcs)
def test_round_trip(rpc):
    assert decode_rpc(encode_rpc(rpc)) == rpc


@given(rpcs, rpcs)
def test_concatenation_merges(one, other):
    merged = decode_rpc(encode_rpc(one) + encode_rpc(other))
    assert isinstance(merged, Rpc)
    assert merged.graft == one.graft + other.graft
    assert merged.subscriptions == one.subscriptions + other.subscriptions


@given(st.binary(max_size=400))
def test_random_bytes_never_raise(data):
    assert isinstance(decode_rpc(data), Rpc | Fault)


@given(rpcs, st.data())
def test_damaged_rpcs_never_raise(rpc, data):
    encoded = bytearray(encode_rpc(rpc) or b"\x00")
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    assert isinstance(decode_rpc(bytes(encoded[:cut])), Rpc | Fault)


def reference_schema():
    """Return the RPC message class that Google's protobuf builds from the published schema."""
    optional, repeated = 1, 3
    boolean, text, raw, number, message = 8, 9, 12, 4, 11
    schema = {
        "SubOpts": [("subscribe", 1, optional, boolean), ("topicid", 2, optional, text)],
        "IHave": [("topicID", 1, optional, text), ("messageIDs", 2, repeated, raw)],
        "IWant": [("messageIDs", 1, repeated, raw)],
        "Graft": [("topicID", 1, optional, text)],
        "Prune": [("topicID", 1, optional, text), ("backoff", 3, optional, number)],
        "Control": [
            ("ihave", 1, repeated, "IHave"),
            ("iwant", 2, repeated, "IWant"),
            ("graft", 3, repeated, "Graft"),
            ("prune", 4, repeated, "Prune"),
        ],
        "RPC": [
            ("subscriptions", 1, repeated, "SubOpts"),
            ("publish", 2, repeated, raw),
            ("control", 3, optional, "Control"),
        ],
    }
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="r", syntax="proto2")
    for name, fields in schema.items():
        entry = file.message_type.add(name=name)
        for field, tag, label, kind in fields:
            added = entry.field.add(name=field, number=tag, label=label)
            added.type = message if isinstance(kind, str) else kind
            if isinstance(kind, str):
                added.type_name = f".r.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("r.RPC"))


REFERENCE = reference_schema()


@given(rpcs)
def test_the_bytes_are_those_of_googles_protobuf(rpc):
    reference = REFERENCE()
    for entry in rpc.subscriptions:
        reference.subscriptions.add(subscribe=entry.subscribe, topicid=entry.topic)
    reference.publish.extend(rpc.publish)
    for have in rpc.ihave:
        reference.control.ihave.add(topicID=have.topic, messageIDs=have.message_ids)
    if rpc.iwant:
        reference.control.iwant.add(messageIDs=rpc.iwant)
    for topic in rpc.graft:
        reference.control.graft.add(topicID=topic)
    for entry in rpc.prune:
        reference.control.prune.add(topicID=entry.topic, backoff=entry.backoff_seconds)
    assert encode_rpc(rpc) == reference.SerializeToString()


def test_unknown_fields_of_every_wire_type_are_skipped():
    unknown = (
        uvarint(9 << 3) + b"\x05" + uvarint(9 << 3 | 1) + bytes(8) + uvarint(9 << 3 | 5) + bytes(4)
    )
    unknown += length_field(10, b"later")
    inner = length_field(3, unknown + length_field(1, unknown) + length_field(2, unknown))
    inner += length_field(3, length_field(3, unknown) + length_field(4, unknown))
    decoded = decode_rpc(unknown + length_field(1, unknown) + inner)
    assert decoded == Rpc(
        subscriptions=(Subscription(False, ""),),
        ihave=(IHave("", ()),),
        graft=("",),
        prune=(Prune("", 0),),
    )


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"\x80" * 11, "varint"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "varint"),
        (b"\x08", "varint"),
        (b"\x00\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x05abc", "truncated"),
        (b"\x09abc", "truncated"),
        (b"\x10\x01", "varint where bytes belong"),
        (length_field(1, length_field(1, b"yes")), "bytes where a varint belongs"),
        (length_field(1, length_field(2, b"\xff\xfe")), "topic is not UTF-8"),
        (length_field(1, length_field(2, bytes(TOPIC_BYTES_MAX + 1))), "129 bytes"),
        (
            length_field(3, length_field(2, length_field(1, bytes(MESSAGE_ID_BYTES_MAX + 1)))),
            "129 bytes",
        ),
        (length_field(1, b"") * (FIELDS_MAX + 1), "too many fields"),
    ],
)
def test_malformed(data, detail):
    fault = decode_rpc(data)
    assert isinstance(fault, Fault)
    assert fault.code == "rpc-malformed"
    assert detail in fault.detail


def test_oversize_is_refused_before_it_is_read():
    assert decode_rpc(bytes(RPC_BYTES_MAX + 1)) == Fault(FaultCode.RPC_OVERSIZE, "1048577 bytes")
