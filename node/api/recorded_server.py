"""HTTP server of a recorded report."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from node.api.local_server import guarded, local_server, web_routes
from node.api.v1.recording import Recording, read_recording
from node.local.datadir import API_HOST
from node.local.sockets import listen


async def serve_recording(directory: Path, port: int, told: Callable[[int], None]) -> None:
    """Serve the recording in a directory until cancelled; call ``told`` with the port.

    Raises ``NodeError``.
    """
    source = Recording(read_recording(directory))
    listener = listen(
        API_HOST,
        port,
        failure="cannot serve the report",
        remedy="choose another --port, or 0 for a free one",
    )
    server = local_server(guarded(web_routes(source)))
    try:
        await server.begin(listener, "recording")
        told(listener.getsockname()[1])
        await asyncio.Event().wait()
    finally:
        await server.end(at_once=True)
