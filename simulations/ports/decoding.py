"""Decoding for simulations: what it takes to read an RPC's fields, on the core that reads it.

At the moment when it is read, so that what waits in a stream costs nothing yet, and the node sees
on its clock of what was computed whose RPCs take long.
"""

from protocol.core.faults import Fault
from protocol.gossipsub.rpc import Rpc, RpcDecoder, decode_rpc
from simulations.runtime.cores import FIELD_SECONDS, Core

FIELD_BYTES_MIN = 2
"""A tag and a value: so many fields were read at most of what turned out to be no RPC."""


def charged(core: Core) -> RpcDecoder:
    """Return what decodes for one node."""

    def decode(data: bytes) -> Rpc | Fault:
        rpc = decode_rpc(data)
        fields = len(data) // FIELD_BYTES_MIN if isinstance(rpc, Fault) else rpc.fields_read
        core.spend(FIELD_SECONDS * fields)
        return rpc

    return decode
