from node.network.streams.protocols import STREAM_PROTOCOLS, topic_name
from protocol.core.types import RunId, Topic
from protocol.messages import PROTOCOL_VERSION

RUN = RunId(bytes(range(32)))


def test_names_carry_the_version_and_the_run_and_differ():
    names = {protocol.word: protocol.on(RUN) for protocol in STREAM_PROTOCOLS}
    assert names["blobs"] == f"/prime-node/{PROTOCOL_VERSION}/0001020304050607/blobs"
    assert len(set(names.values())) == len(STREAM_PROTOCOLS)
    ours = [name for word, name in names.items() if word not in ("gossip", "hop")]
    assert all(name.startswith(f"/prime-node/{PROTOCOL_VERSION}/") for name in ours)
    assert topic_name(Topic.ROSTER, RUN) == f"prime-node/{PROTOCOL_VERSION}/{RUN.hex()}/roster"


def test_everything_has_a_limit():
    for protocol in STREAM_PROTOCOLS:
        assert 1 <= protocol.streams_per_peer <= protocol.streams_total
        assert protocol.stall_seconds <= (protocol.exchange_seconds or 60)
        assert max(protocol.opener_bytes_max, protocol.acceptor_bytes_max) > 0
