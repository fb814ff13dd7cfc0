"""One RPC to each of many peers: mostly the same, which is encoded once."""

from collections.abc import Mapping

from protocol.gossip.events import Effect, Priority, Send
from protocol.gossip.rpc import Rpc, encode_rpc
from protocol.types import PeerId


def send_each(rpcs: Mapping[PeerId, Rpc], priority: Priority) -> list[Effect]:
    """Return what sends to each peer its RPC."""
    encoded: dict[Rpc, bytes] = {}
    effects: list[Effect] = []
    for peer, rpc in rpcs.items():
        data = encoded.get(rpc)
        if data is None:
            data = encoded[rpc] = encode_rpc(rpc)
        effects.append(Send(peer, data, priority))
    return effects
