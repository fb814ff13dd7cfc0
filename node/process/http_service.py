"""HTTP service of a live node: weights server (optional) and client."""

from collections.abc import Callable
from functools import partial

from node.context import NodeContext
from node.daemon import Daemon
from node.local.sockets import listen
from node.network.http.application import Application
from node.network.http.catalog import Catalogue
from node.network.http.client import HttpClient
from node.network.http.server import WeightsServer
from node.storage.blobs import FileBlobs
from protocol.core.types import PeerId, Version
from roles.ports.engines import Policy


class HttpService:
    """Binds its port on creation; serves after ``serve``.

    ``port`` None disables the server. Raises ``NodeError`` when the port is in use.
    """

    def __init__(
        self, host: str, port: int | None, host_of: Callable[[PeerId], str | None]
    ) -> None:
        self.client = HttpClient(host_of)
        self._host_of = host_of
        texts = {"failure": "cannot serve weights", "remedy": "choose another --http-port"}
        self._listener = None if port is None else listen(host, port, **texts)
        self._server: WeightsServer | None = None

    @property
    def port(self) -> int:
        """Port for the node's record; 0 if disabled."""
        return 0 if self._listener is None else int(self._listener.getsockname()[1])

    async def serve(self, daemon: Daemon, blobs: FileBlobs) -> None:
        """Serve the policies of ``daemon``, within its upload limit and statistics."""
        if self._listener is None:
            return
        exchange = daemon.exchange
        catalogue = Catalogue(blobs, lambda: _policies_of(daemon))
        trusted = partial(self._is_trusted, daemon.context)
        application = Application(catalogue, exchange.upload_cap, exchange.sent, trusted=trusted)
        self._server = WeightsServer(self._listener, application)
        daemon.context.tables.register(*self._server.rate_limiter.tables)
        await self._server.start()

    def _is_trusted(self, context: NodeContext, address: str) -> bool:
        """Return whether a trusted peer is connected from ``address``."""
        here = (peer for peer in context.peers.connected if self._host_of(peer) == address)
        return any(map(context.trust.trusted, here))

    async def close(self) -> None:
        """Close all connections; idempotent."""
        if self._server is not None:
            await self._server.stop()
        if self._listener is not None:
            self._listener.close()
        self.client.close()


def _policies_of(daemon: Daemon) -> dict[Version, Policy]:
    newest = daemon.policies.newest_version()
    oldest = max(0, newest - daemon.replica.manifest.shardcast.versions_kept + 1)
    found = map(daemon.policies.get, range(oldest, newest + 1))
    return {policy.version: policy for policy in found if policy is not None}
