"""Recognition of peers by address in the weights server."""

from types import SimpleNamespace

from node.context import TableRegistry
from node.network.blobs.traffic_stats import TrafficStats
from node.network.resources.upload_scheduler import UploadScheduler
from node.process import http_service
from node.process.http_service import HttpService
from roles.ports.transport import Trust

HOSTS = {"worker": "45.1.0.2", "untrusted": "45.2.0.2", "hidden": None}


async def test_an_address_is_trusted_while_a_trusted_peer_is_connected_from_it(monkeypatch):
    made = []

    class Noted(http_service.Application):
        def __init__(self, *arguments, trusted):
            super().__init__(*arguments, trusted=trusted)
            made.append(trusted)

    monkeypatch.setattr(http_service, "Application", Noted)
    face = HttpService("127.0.0.1", 0, HOSTS.get)
    connected = ["untrusted", "hidden", "worker"]
    trust = Trust(lambda peer: peer in ("worker", "hidden"))
    peers = SimpleNamespace(connected=connected)
    context = SimpleNamespace(peers=peers, trust=trust, tables=TableRegistry())
    exchange = SimpleNamespace(upload_cap=UploadScheduler(None), sent=TrafficStats())
    await face.serve(SimpleNamespace(context=context, exchange=exchange), None)
    (is_trusted,) = made
    assert is_trusted("45.1.0.2")
    assert not is_trusted("45.2.0.2")
    assert not is_trusted("45.3.0.2")
    connected.remove("worker")
    assert not is_trusted("45.1.0.2")
    await face.close()
