"""HTTP client of the commands for the control API of a running daemon.

It uses the standard library: importing httpx takes five times as long as this request. It also
ignores proxies, which cannot reach 127.0.0.1 of this machine.
"""

import http.client
import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from node.api.contributors import ContributorsPage
from node.api.council import CouncilPage
from node.api.status import NodeStatus
from node.api.why import Why
from node.local.datadir import API_HOST, DataDir, load_api_endpoint
from node.local.errors import ExitCode, NodeError

_Shape = TypeVar("_Shape")

REQUEST_SECONDS = 5.0
"""A node responds in milliseconds, with all cores busy in seconds."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Far above the status of a swarm of ten thousand."""


def fetch_status(datadir: DataDir) -> NodeStatus:
    """Return the daemon's status; raises ``NodeError`` when no daemon responds."""
    return _shaped(NodeStatus, datadir, "/status")


def fetch_why(datadir: DataDir) -> Why:
    """Return the daemon's explanations; raises ``NodeError`` when no daemon responds."""
    return _shaped(Why, datadir, "/why")


def fetch_council(datadir: DataDir) -> CouncilPage:
    """Return the daemon's view of the council; raises ``NodeError`` when no daemon responds."""
    return _shaped(CouncilPage, datadir, "/api/v1/council")


def fetch_contributors(datadir: DataDir) -> ContributorsPage:
    """Return the contributors of the run; raises ``NodeError`` when no daemon responds."""
    return _shaped(ContributorsPage, datadir, "/api/v1/contributors")


def _shaped(shape: type[_Shape], datadir: DataDir, path: str) -> _Shape:
    try:
        return TypeAdapter(shape).validate_python(fetch(datadir, path))
    except ValidationError:
        raise NodeError(
            f"the daemon of {datadir.root} is of another version than this command; restart it",
            ExitCode.NO_DAEMON,
        ) from None


def fetch(datadir: DataDir, path: str) -> dict[str, Any]:
    """Return the JSON object at ``path``; raises ``NodeError`` when no daemon responds."""
    endpoint = load_api_endpoint(datadir)
    if endpoint is None:
        raise _no_daemon(datadir)
    connection = http.client.HTTPConnection(API_HOST, endpoint.port, timeout=REQUEST_SECONDS)
    try:
        connection.request("GET", path)
        with connection.getresponse() as answer:
            values = json.loads(answer.read(ANSWER_BYTES_MAX))
    except TimeoutError:
        raise NodeError(
            f"the daemon of {datadir.root} (process {endpoint.pid}) did not respond within "
            f"{REQUEST_SECONDS:.0f} s; see its log",
            ExitCode.RETRY,
        ) from None
    except (OSError, http.client.HTTPException, ValueError):
        raise _no_daemon(datadir) from None
    finally:
        connection.close()
    if answer.status != http.client.OK or not isinstance(values, dict):
        raise _no_daemon(datadir)
    return values


def _no_daemon(datadir: DataDir) -> NodeError:
    return NodeError(
        f"no daemon is running in {datadir.root}; start one with prime-node --role ROLE, "
        "or name its directory with --data-dir",
        ExitCode.NO_DAEMON,
    )
