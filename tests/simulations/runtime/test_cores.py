"""RPC decoding time is charged to the reader's core, and visible on the node's clock."""

import asyncio

import pytest

from protocol.gossipsub.rpc import Rpc, decode_rpc, encode_rpc
from simulations.network.links import SimClock
from simulations.runtime.cores import FIELD_SECONDS, Core, charged
from simulations.runtime.loop import VirtualLoop

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

SAYS_NOTHING = bytes((15 << 3, 0)) * 1000
GRAFTS = encode_rpc(Rpc(graft=("one", "other")))


@pytest.mark.parametrize(
    ("data", "fields"),
    [(SAYS_NOTHING, 1000), (GRAFTS, 5), (SAYS_NOTHING + b"\xff", 1000), (b"", 0)],
    ids=["unknown fields", "control, two GRAFTs and their topics", "no RPC in the end", "nothing"],
)
async def test_an_rpc_costs_its_fields_and_is_what_it_is(data, fields):
    loop = asyncio.get_running_loop()
    core = Core(loop)
    clock = SimClock(loop, core)
    assert clock.core_seconds() == 0.0
    found = charged(core)(data)
    assert found == decode_rpc(data)
    assert clock.core_seconds() == pytest.approx(fields * FIELD_SECONDS)
