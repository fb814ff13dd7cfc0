import asyncio

import pytest

from node.context import TableRegistry
from node.network.streams.framing import write_frame
from node.network.streams.protocols import MANIFEST
from node.replication.manifest_exchange import fetch_manifest, serve_manifest
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.run.manifest import sign_manifest
from roles.ports.transport import TransportError, Trust
from simulations.network import streams
from tests.worlds.messages import identity, run_manifest
from tests.worlds.network import Hub

pytestmark = pytest.mark.virtual

SIGNED = sign_manifest(run_manifest(), identity("creator"))
HERE, THERE = PeerId("here"), PeerId("there")


async def ask(serve=None):
    """Request a peer's run; ``serve`` replaces its handler."""
    hub = Hub()
    here, there = hub.transport(HERE), hub.transport(THERE)
    hub.connect(HERE, THERE)
    if serve is None:
        await serve_manifest(there, SIGNED, Trust(), TableRegistry())
    else:
        await there.handle(MANIFEST.name, serve)
    return await fetch_manifest(here, THERE, verify)


async def test_a_new_node_learns_the_run():
    assert await ask() == SIGNED


async def test_a_manifest_that_its_creator_did_not_sign_is_a_fault():
    async def serve(stream):
        await write_frame(stream, SIGNED.encoded()[:-1] + b"\0")

    assert isinstance(await ask(serve), Fault)


async def test_a_huge_answer_is_not_read():
    async def serve(stream):
        await stream.write((1 << 31).to_bytes(4, "big"))

    fault = await ask(serve)
    assert isinstance(fault, Fault)
    assert fault.code == "oversize"


async def silent(_stream):
    await asyncio.sleep(3600)


async def short(stream):
    await stream.write(b"\0\0\0\x09abc")


@pytest.mark.parametrize("serve", [silent, short])
async def test_late_answer_raises_transport_error(serve):
    with pytest.raises(TransportError):
        await ask(serve)


async def test_a_peer_that_does_not_read_costs_the_server_a_deadline(monkeypatch):
    monkeypatch.setattr(streams, "WINDOW_BYTES", 0)  # a reader that reads nothing blocks the writer
    hub = Hub()
    here, there = hub.transport(HERE), hub.transport(THERE)
    hub.connect(HERE, THERE)
    large = sign_manifest(run_manifest(validators=200), identity("creator"))
    tables = TableRegistry()
    await serve_manifest(there, large, Trust(), tables)
    stream = await here.open_stream(THERE, MANIFEST.name)
    await asyncio.sleep(1)
    assert tables.sizes()["streams_manifest"] == 1
    await asyncio.sleep(20)
    assert tables.sizes()["streams_manifest"] == 0
    await stream.close()


async def test_manifest_streams_are_limited_in_total_and_per_peer(monkeypatch):
    monkeypatch.setattr(streams, "WINDOW_BYTES", 0)  # a reader that reads nothing blocks the writer
    hub = Hub()
    there = hub.transport(THERE)
    large = sign_manifest(run_manifest(validators=200), identity("creator"))
    tables = TableRegistry()
    await serve_manifest(there, large, Trust(), tables)
    for number in (0, *range(MANIFEST.streams_total + 5)):
        peer = PeerId(f"peer-{number}")
        here = hub.transports.get(peer) or hub.transport(peer)
        hub.connect(peer, THERE)
        await here.open_stream(THERE, MANIFEST.name)
        await asyncio.sleep(0.01)
        assert tables.sizes()["streams_manifest"] == min(number + 1, MANIFEST.streams_total)
    await asyncio.sleep(20)
    monkeypatch.undo()
    here = hub.transport(HERE)
    hub.connect(HERE, THERE)
    assert await fetch_manifest(here, THERE, verify) == large
