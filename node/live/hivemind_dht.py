"""Live ``Directory``: hivemind's Kademlia node in the node's own event loop.

Avoids the forked ``hivemind.DHT`` (fork and threads). The DHT node uses the transport's p2pd and is
rebuilt when that restarts; records stored for others survive. The directory is only a hint to find
addresses: admission depends on signed records.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from hivemind.dht import DHTNode
from hivemind.p2p import PeerID
from typing_extensions import override

from node.live.hivemind_p2p import HivemindTransport
from node.live.records import BoundedStorage, RecordValidator, harden, node_id
from node.local.system import SystemClock
from node.network.resources.dht_call_limiter import DhtCallLimiter
from protocol.core.containers import SizeGauge, Table
from protocol.core.crypto import Identity
from protocol.core.faults import Fault
from protocol.core.types import PeerId, RunId
from protocol.membership.directory_buckets import OWNERS_PER_KEY_MAX, Buckets
from roles.ports.transport import Directory, TransportError, Trust

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
"""Deadline of one publish or lookup: three hops of ``RPC_SECONDS`` and a margin."""

RPC_SECONDS = 3.0
REPLICAS = 5


class HivemindDirectory(Directory):
    """``roles.ports.Directory`` on hivemind's DHT; use ``create`` and ``close``."""

    def __init__(
        self,
        transport: HivemindTransport,
        validator: RecordValidator,
        buckets: Buckets,
        calls: DhtCallLimiter,
        trust: Trust,
        hidden: bool,
    ) -> None:
        self._transport = transport
        self._hidden = hidden
        self._validator = validator
        self._keys = frozenset(buckets.keys)
        self._storage = BoundedStorage(trust)
        self._calls = calls
        self.tables: tuple[Table, ...] = (
            *self._calls.tables,
            SizeGauge("directory_records", OWNERS_PER_KEY_MAX, self._storage.fullest),
        )
        self._node: Any = None
        self._closed = False

    @classmethod
    async def create(
        cls,
        transport: HivemindTransport,
        identity: Identity,
        run_id: RunId,
        buckets: Buckets,
        *,
        trust: Trust | None = None,
        blame: Callable[[PeerId, Fault], None] = lambda _peer, _fault: None,
        hidden: bool = False,
        now: Callable[[], float] | None = None,
    ) -> "HivemindDirectory":
        """Join through the connected peers; without any, start alone and join later.

        ``buckets`` are the keys in use and the peers listed under each. ``trust`` decides evictions
        and call budgets; ``blame`` receives floods. A ``hidden`` node (behind NAT) only queries,
        and stores no records. Raises ``TransportError`` without p2pd.
        """
        validator = RecordValidator(identity, run_id, buckets, now or SystemClock().now)
        trust = trust or Trust()
        calls = DhtCallLimiter(trust=trust, blame=blame)
        directory = cls(transport, validator, buckets, calls, trust, hidden)
        await directory._rebuild()
        transport.on_restart(directory._rebuild)
        return directory

    @property
    def neighbours(self) -> int:
        """Number of known directory nodes; 0: this node is alone."""
        return 0 if self._node is None else len(self._node.protocol.routing_table.uid_to_peer_id)

    async def bootstrap(self, addresses: Iterable[str]) -> int:
        """Connect to each address and join its directory; return the number of answers.

        May be called at any time, also after a start alone.
        """
        reached = await asyncio.gather(*(self._dial(address) for address in addresses))
        return await self._join(peer for peer in reached if peer is not None)

    @override
    async def publish(self, key: str, value: bytes, expires_at: float) -> bool:
        self._require_key(key)
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(CALL_SECONDS):
                node = await self._joined()
                subkey = self._transport.peer_id
                return bool(await node.store(key, value, float(expires_at), subkey=subkey))
        return False

    @override
    async def lookup(self, key: str) -> Mapping[PeerId, bytes]:
        self._require_key(key)
        found = None
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(CALL_SECONDS):
                node = await self._joined()
                found = await node.get(key, latest=True)
        if found is None or not isinstance(found.value, dict):
            return {}
        return {PeerId(owner): entry.value for owner, entry in sorted(found.value.items())}

    async def close(self) -> None:
        """Leave the directory; idempotent."""
        self._closed = True
        if self._node is not None:
            node, self._node = self._node, None
            with suppress(TimeoutError):
                async with asyncio.timeout(RPC_SECONDS):
                    await node.shutdown()

    async def _dial(self, address: str) -> PeerId | None:
        try:
            return await self._transport.connect(address)
        except TransportError as error:
            log.info("bootstrap peer %s: %s", address, error)
            return None

    def _require_key(self, key: str) -> None:
        if key not in self._keys:
            raise ValueError(f"{key} is not a key of this directory")

    async def _joined(self) -> Any:
        """Return the DHT node; while it is alone, try to join through the connected peers."""
        node = self._node
        if node is None or node.p2p is not self._transport.p2p:
            raise TransportError("the directory is closed or being rebuilt")
        if not self.neighbours:
            await self._join(await self._transport.peers())
        return node

    async def _rebuild(self) -> None:
        """Create a DHT node on the present p2pd; the previous one ended with its p2pd."""
        if self._closed:
            return
        self._node = None
        self._transport.p2p.calls = self._calls
        try:
            async with asyncio.timeout(CALL_SECONDS):
                node = await DHTNode.create(
                    p2p=self._transport.p2p,
                    node_id=node_id(self._transport.peer_id),
                    client_mode=self._hidden,
                    num_replicas=REPLICAS,
                    wait_timeout=RPC_SECONDS,
                    record_validator=self._validator,
                    cache_locally=False,
                    cache_nearest=0,
                    cache_on_store=False,
                    cache_refresh_before_expiry=0,
                )
        except TimeoutError as error:
            raise TransportError(f"no directory node within {CALL_SECONDS:g} s") from error
        harden(node.protocol, self._storage, self._validator, self._calls)
        self._node = node
        await self._join(await self._transport.peers())

    async def _join(self, peers: Iterable[PeerId]) -> int:
        """Ping ``peers``, then look up our own neighbourhood; return the number of answers."""
        node = self._node
        if node is None:
            return 0
        pings = [node.protocol.call_ping(PeerID.from_base58(peer)) for peer in peers]
        answered = sum(answer is not None for answer in await asyncio.gather(*pings))
        if answered:
            await asyncio.sleep(0)  # hivemind updates its table in separate tasks
            with suppress(TimeoutError):
                async with asyncio.timeout(CALL_SECONDS):
                    await node.find_nearest_nodes([node.node_id])
        return answered
