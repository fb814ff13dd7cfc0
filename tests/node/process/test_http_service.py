"""Recognition of peers by address in the weights server."""

from types import SimpleNamespace

from node.process.http_service import HttpService
from roles.ports.transport import Trust

HOSTS = {"worker": "45.1.0.2", "untrusted": "45.2.0.2", "hidden": None}


def test_an_address_has_reputation_while_a_peer_trusted_is_connected_from_it():
    face = HttpService("127.0.0.1", None, HOSTS.get)
    connected = ["untrusted", "hidden", "worker"]
    trust = Trust(lambda peer: peer in ("worker", "hidden"))
    context = SimpleNamespace(peers=SimpleNamespace(connected=connected), trust=trust)
    assert face._is_trusted(context, "45.1.0.2")
    assert not face._is_trusted(context, "45.2.0.2")
    assert not face._is_trusted(context, "45.3.0.2")
    connected.remove("worker")
    assert not face._is_trusted(context, "45.1.0.2")
