"""How the commands ask the running daemon.

The standard library's client: a command must answer at once, and importing httpx alone takes five
times as long as this request. It also asks no proxy for what is on this machine.
"""

import http.client
import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from node.api.status import NodeStatus
from node.api.why import Why
from node.local.datadir import API_HOST, DataDir, load_api_endpoint
from node.local.errors import ExitCode, NodeError

_Shape = TypeVar("_Shape")

REQUEST_SECONDS = 5.0
"""A node answers in milliseconds; one whose cores are busy with a model may take seconds."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Far above the status of a swarm of ten thousand."""


def fetch_status(datadir: DataDir) -> NodeStatus:
    """Ask for the daemon's snapshot; raises ``NodeError`` when none answers."""
    return _shaped(NodeStatus, datadir, "/status")


def fetch_why(datadir: DataDir) -> Why:
    """Ask the daemon for its explanations; raises ``NodeError`` when none answers."""
    return _shaped(Why, datadir, "/why")


def _shaped(shape: type[_Shape], datadir: DataDir, path: str) -> _Shape:
    try:
        return TypeAdapter(shape).validate_python(fetch(datadir, path))
    except ValidationError:
        raise NodeError(
            f"the daemon of {datadir.root} is of another version than this command; restart it",
            ExitCode.NO_DAEMON,
        ) from None


def fetch(datadir: DataDir, path: str) -> dict[str, Any]:
    """Return the JSON object at ``path``; raises ``NodeError`` when no daemon answers."""
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
            f"the daemon of {datadir.root} (process {endpoint.pid}) did not answer within "
            f"{REQUEST_SECONDS:.0f} s; look at its log",
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
        "or say where it is with --data-dir",
        ExitCode.NO_DAEMON,
    )
