"""Gate of inbound streams, shared by all protocols."""

import asyncio

import pytest

from node.network.connections.gater import BAN_SECONDS, OPEN_RATES, Bans, ConnectionGater
from protocol.core.types import PeerId

pytestmark = pytest.mark.virtual

PEER = PeerId("peer")
UNTRUSTED_PER_SECOND = OPEN_RATES.shared.per_second
FLOOD = int(60 * UNTRUSTED_PER_SECOND)


class Opened:
    """Stream with the attributes that the gate reads."""

    def __init__(self, peer):
        self.peer = peer


class Gate:
    def __init__(self, admits=lambda _peer: True):
        self.bans = Bans()
        self.blamed, self.sent_away, self.served = [], [], []
        inbound = ConnectionGater(self.trusted, self.bans, self.blame, self.disconnect, admits)
        self.openings, self.open = inbound.openings, inbound.guarded(self.serve)

    def trusted(self, peer):
        return peer == "trusted"

    def blame(self, peer, fault):
        self.blamed.append((peer, str(fault)))
        self.bans.blame(peer, fault, asyncio.get_running_loop().time())

    async def disconnect(self, peer):
        self.sent_away.append(peer)
        await asyncio.sleep(1.0)

    async def serve(self, stream):
        self.served.append(stream.peer)


async def floods(gate):
    """Open streams from an untrusted peer until it is banned; return their number."""
    for count in range(FLOOD):
        if gate.sent_away:
            return count
        await gate.open(Opened(PEER))
    pytest.fail("nobody minds")


async def test_who_opens_too_many_streams_is_soon_kept_away_and_its_connection_ended():
    gate = Gate()
    count = await floods(gate)
    assert gate.blamed == [(PEER, "opened-too-often")] * 3
    assert gate.served == [PEER] * (count - 1)
    assert UNTRUSTED_PER_SECOND < count < FLOOD


async def test_who_is_kept_away_is_not_served_and_its_connection_is_ended_once_each_time_it_comes():
    gate = Gate()
    await floods(gate)
    served = len(gate.served)
    await asyncio.gather(*(gate.open(Opened(PEER)) for _ in range(50)))
    assert gate.sent_away == [PEER] * 2
    await gate.open(Opened(PEER))
    assert gate.sent_away == [PEER] * 3
    await gate.open(Opened("other"))
    assert gate.served[served:] == ["other"]
    await asyncio.sleep(BAN_SECONDS)
    await gate.open(Opened(PEER))
    assert gate.served[served:] == ["other", PEER]


async def test_who_finds_no_room_is_not_served_and_nobody_trusted_is_at_fault():
    gate = Gate(admits=lambda peer: peer == "trusted")
    for _ in range(100):
        await gate.open(Opened(PEER))
        for _ in range(100):
            await gate.open(Opened("trusted"))
    assert gate.served == ["trusted"] * 10_000
    assert gate.blamed == gate.sent_away == []
    assert len(gate.openings) == 1
