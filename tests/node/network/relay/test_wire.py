import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.network.relay.wire import (
    HOP_SHAPE,
    STOP_SHAPE,
    CircuitMessage,
    CircuitMessageKind,
    CircuitStatus,
    ask,
    decode,
    encode,
    receive,
    send,
)
from protocol.core.crypto import Identity
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId
from roles.ports.transport import TransportError

PEER = Identity(bytes(32)).peer_id

# Answer of go-libp2p 0.32.1, as p2pd's own relay: with addresses and a signed voucher.
GO_RESERVED = (
    "08021a800208f4e18fd8061231042d010002060fa1a5032600240801122086d151ff186b99f4adc306c0080299fc"
    "5e78ff66d01e2dc1cd121cff254e84ae1ac4010a240801122086d151ff186b99f4adc306c0080299fc5e78ff66d0"
    "1e2dc1cd121cff254e84ae120203021a560a2600240801122086d151ff186b99f4adc306c0080299fc5e78ff66d0"
    "1e2dc1cd121cff254e84ae1226002408011220b197a3c07502bc72ed7dcd569ca15d45b5faa4e709e3c8f71717bf"
    "49ef64c8d518f4e18fd8062a400bfa46b67207488ed952848227536218f01c6e78cfd80a69a618023b8913c3a4da"
    "18a27a1eb2aabd4a3cae478ffba60c535c537f13884f81d2d9f21bfb335e0d22060878108080082864"
)
GO_PROBES = (
    "080012280a26002408011220014fbf7c33aa7b66e404afa58ff84e280166e2e8f5623dceaf1136c35083c425"
    "1a06087810808008"
)
GO_REFUSES = "080228cb01"
CALLER = PeerId("12D3KooW9uV76x7xUqNFLgQTVfivGhsjP1ozYbb7dNYhJBDySWYc")


class Pipe:
    """Stream that reads what was written, or ``data``."""

    def __init__(self, data=b""):
        self.data = data

    async def read_exactly(self, count):
        taken, self.data = self.data[:count], self.data[count:]
        if len(taken) < count:
            raise TransportError("ended")
        return taken

    async def write(self, data):
        self.data += data


@pytest.mark.parametrize(
    ("data", "shape", "message"),
    [
        (
            GO_RESERVED,
            HOP_SHAPE,
            CircuitMessage(
                CircuitMessageKind.STATUS, None, CircuitStatus.OK, 1795420404, 120, 131072
            ),
        ),
        (
            GO_PROBES,
            STOP_SHAPE,
            CircuitMessage(CircuitMessageKind.CONNECT, CALLER, 0, 0, 120, 131072),
        ),
        (
            GO_REFUSES,
            HOP_SHAPE,
            CircuitMessage(CircuitMessageKind.STATUS, None, CircuitStatus.CONNECTION_FAILED),
        ),
    ],
)
def test_what_go_says_is_understood(data, shape, message):
    assert decode(bytes.fromhex(data), shape) == message


def test_we_connect_and_refuse_in_the_same_bytes_as_go():
    probe = CircuitMessage(CircuitMessageKind.CONNECT, CALLER, 0, 0, 120, 131072)
    assert encode(probe, STOP_SHAPE).hex() == GO_PROBES
    refusal = CircuitMessage(CircuitMessageKind.STATUS, None, CircuitStatus.CONNECTION_FAILED)
    assert encode(refusal, HOP_SHAPE).hex() == GO_REFUSES


MESSAGES = st.builds(
    CircuitMessage,
    st.sampled_from(CircuitMessageKind),
    st.sampled_from([None, PEER]),
    *[st.integers(0, 2**32)] * 4,
)


@given(MESSAGES)
def test_what_is_sent_arrives_and_nothing_after_it_is_read(message):
    async def scenario():
        pipe = Pipe()
        await send(pipe, message, HOP_SHAPE)
        pipe.data += b"a handshake"
        assert await receive(pipe, HOP_SHAPE) == message
        assert pipe.data == b"a handshake"

    asyncio.run(scenario())


@given(st.binary(max_size=200), st.sampled_from([HOP_SHAPE, STOP_SHAPE]))
def test_no_bytes_upset_it(data, shape):
    assert isinstance(decode(data, shape), CircuitMessage | Fault)


@pytest.mark.parametrize(
    "data",
    [
        "0807",  # an unknown kind
        "0a00",  # bytes for the kind
        "1005",  # a number for the peer
        "12040a021220",  # a peer id that is no Ed25519 key
        "08",  # cut off
        "1a05",
        "0b",  # a group
        "08ffffffffffffffffffffff01",
        "0801" * 65,
    ],
)
def test_what_is_no_message_is_a_fault(data):
    assert decode(bytes.fromhex(data), HOP_SHAPE).code is FaultCode.BAD_FIELDS


@pytest.mark.parametrize("prefix", [b"\xff\xff\x01", b"\x81\x20"])  # 3 bytes; 4097
async def test_a_long_message_is_not_read(prefix):
    pipe = Pipe(prefix + bytes(5000))
    assert (await receive(pipe, HOP_SHAPE)).code is FaultCode.OVERSIZE
    assert len(pipe.data) >= 5000 - len(prefix)


async def test_a_peer_that_asks_hears_yes_or_an_error():
    for answer in (
        CircuitMessage(CircuitMessageKind.STATUS, None, CircuitStatus.NO_RESERVATION),
        CircuitMessage(CircuitMessageKind.CONNECT, PEER, CircuitStatus.OK),
    ):
        said = encode(answer, HOP_SHAPE)
        pipe = Pipe(bytes((len(said),)) + said)
        pipe.write = lambda _data: asyncio.sleep(0)
        with pytest.raises(TransportError):
            await ask(pipe, CircuitMessage(CircuitMessageKind.RESERVE), HOP_SHAPE)
