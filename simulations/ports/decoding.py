"""RPC decoding for simulations, which charges the reading core for each field.

The charge falls at the time of reading, so bytes that wait in a stream cost nothing yet. The node's
clock shows it which peers send slow RPCs.
"""

from protocol.core.faults import Fault
from protocol.gossipsub.rpc import Rpc, RpcDecoder, decode_rpc
from simulations.runtime.cores import FIELD_SECONDS, Core

FIELD_BYTES_MIN = 2
"""A tag and a value: a malformed RPC is charged for at most this many fields."""


def charged(core: Core) -> RpcDecoder:
    """Return the decoder of one node."""

    def decode(data: bytes) -> Rpc | Fault:
        rpc = decode_rpc(data)
        fields = len(data) // FIELD_BYTES_MIN if isinstance(rpc, Fault) else rpc.fields_read
        core.spend(FIELD_SECONDS * fields)
        return rpc

    return decode
