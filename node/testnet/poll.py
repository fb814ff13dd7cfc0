"""Status requests to a node; a file in its data directory holds the port of its control API."""

import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError

from node.api.status import NodeStatus
from node.local.datadir import API_HOST, DataDir, load_api_endpoint
from node.local.memory import is_running, peak_rss_bytes

REQUEST_SECONDS = 3.0
"""A node responds in milliseconds, with a whole swarm on two cores in up to a second."""

_STATUS = TypeAdapter(NodeStatus)


@dataclass(frozen=True, slots=True)
class StatusSample:
    """Result of one poll of a node; ``status`` is None without a response."""

    pid: int | None
    running: bool
    status: NodeStatus | None
    peak_rss_bytes: int = 0
    p2pd_peak_rss_bytes: int = 0
    at: float = 0.0
    """Unix time of the response."""


async def sample(client: httpx.AsyncClient, directory: Path) -> StatusSample:
    """Poll the node of a data directory; never raises for failures of the node."""
    endpoint = load_api_endpoint(DataDir(directory))
    if endpoint is None or not is_running(endpoint.pid):
        return StatusSample(
            endpoint.pid if endpoint is not None else None, running=False, status=None
        )
    status = await _status(client, endpoint.port)
    return StatusSample(
        endpoint.pid,
        running=True,
        status=status,
        peak_rss_bytes=peak_rss_bytes(endpoint.pid),
        p2pd_peak_rss_bytes=peak_rss_bytes(status.p2pd_pid) if status is not None else 0,
        at=time.time(),
    )


async def _status(client: httpx.AsyncClient, port: int) -> NodeStatus | None:
    try:
        answer = await client.get(f"http://{API_HOST}:{port}/status", timeout=REQUEST_SECONDS)
        return _STATUS.validate_json(answer.content) if answer.is_success else None
    except (httpx.HTTPError, ValidationError):
        return None
