"""What makes RPCs and messages of bytes, for who has it done in another way."""

from dataclasses import dataclass, field

from protocol.gossip.message import Decoded
from protocol.gossip.rpc import RpcDecoder, decode_rpc

DECODED_MAX = 1024
"""Messages remembered: each comes from about six mesh peers within seconds."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Many nodes in one process share ``messages``; ``rpc`` may also tell what it takes."""

    messages: Decoded = field(default_factory=lambda: Decoded(DECODED_MAX))
    rpc: RpcDecoder = decode_rpc
