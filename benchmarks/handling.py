"""CPU cost of handling peers' messages: the constants of ``simulations.runtime.cores``.

``python -m benchmarks.handling [--rounds N]`` prints core microseconds for each kind of RPC,
through router and replica as the daemon calls them, with Ed25519.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

from protocol.core.crypto import SIGNATURE_BYTES, Identity, verify
from protocol.core.rng import Rng
from protocol.core.types import ValidationResult
from protocol.gossipsub.events import PeerConnected, RpcReceived, Subscribe, Validate, Validated
from protocol.gossipsub.message import MESSAGE_ID_BYTES, encode_message, sign_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import IHave, Rpc, encode_rpc

TOPIC = "prime-node/2/run/commits"
DATA_BYTES = 700
"""About a commit in its envelope."""

IDS = 5000
FIELDS = 20_000


class Handling:
    """A router that receives from one peer."""

    def __init__(self) -> None:
        self._rng = Rng(bytes(32))
        self.peer = Identity(self._rng.bytes(32))
        self._router = Router(Identity(self._rng.bytes(32)), Params(), self._rng.child("router"))
        self._router.handle(Subscribe(TOPIC, False), 0.0)
        self._router.handle(PeerConnected(self.peer.peer_id), 0.0)
        self._seqno = 0

    def message(self, *, signed: bool = True) -> bytes:
        """Return an RPC with one new message."""
        self._seqno += 1
        message = sign_message(self.peer, TOPIC, self._rng.bytes(DATA_BYTES), self._seqno)
        if not signed:
            message = replace(message, signature=bytes(SIGNATURE_BYTES))
        return encode_rpc(Rpc(publish=(encode_message(message),)))

    def handle(self, rpc: bytes) -> None:
        """Handle an RPC completely; messages with a valid signature are accepted."""
        for effect in self._router.handle(RpcReceived(self.peer.peer_id, rpc), 1.0):
            if isinstance(effect, Validate):
                self._router.handle(Validated(effect.message_id, ValidationResult.ACCEPT), 1.0)

    def ids(self, number: int) -> bytes:
        """Return an IHAVE of unknown ids."""
        prefix = number.to_bytes(4, "big")
        width = MESSAGE_ID_BYTES - len(prefix)
        ids = tuple(prefix + item.to_bytes(width, "big") for item in range(IDS))
        return encode_rpc(Rpc(ihave=(IHave(TOPIC, ids),)))


def microseconds(work: Callable[[bytes], None], inputs: list[bytes]) -> float:
    """Return the median time of ``work`` over the inputs."""
    times = []
    for each in inputs:
        began = time.perf_counter()
        work(each)
        times.append(1e6 * (time.perf_counter() - began))
    return sorted(times)[len(times) // 2]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    handling, rounds = Handling(), arguments.rounds
    new = [handling.message() for _ in range(rounds)]
    few = max(5, rounds // 20)
    ihave = [handling.ids(number) for number in range(few)]
    fields = [bytes((8 << 3, number % 128)) * FIELDS for number in range(few)]
    data, signer = bytes(DATA_BYTES), handling.peer
    signature = signer.sign(data)
    found = {
        "signature": microseconds(lambda _: _verified(signer, data, signature), new),
        "message_new": microseconds(handling.handle, new),
        "message_known": microseconds(handling.handle, new),
        "message_badly_signed": microseconds(
            handling.handle, [handling.message(signed=False) for _ in range(rounds)]
        ),
        "ihave_per_kb": microseconds(handling.handle, ihave) / (len(ihave[0]) / 1000),
        "fields_per_kb": microseconds(handling.handle, fields) / (len(fields[0]) / 1000),
    }
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24} {value:8.1f} us")


def _verified(signer: Identity, data: bytes, signature: bytes) -> None:
    if not verify(signer.peer_id, data, signature):
        raise RuntimeError("a good signature is refused")


if __name__ == "__main__":
    main()
