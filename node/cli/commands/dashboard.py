"""Open the dashboard of the running node, or of a report."""

import getpass
import http.client
import os
import socket
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from node.cli.commands.context import data_dir_of, print_json
from node.cli.options import CommandDataDir, Json
from node.local.datadir import API_HOST, DataDir, load_api_endpoint
from node.local.errors import ExitCode, NodeError

app = typer.Typer(add_completion=False)

ANSWER_SECONDS = 5.0

Report = Annotated[
    Path | None,
    typer.Argument(metavar="[REPORT]", help="Directory of `simulate run --report`."),
]
Port = Annotated[
    int, typer.Option(metavar="PORT", min=0, max=65_535, help="Port of a report; 0: a free one.")
]
Open = Annotated[
    bool | None, typer.Option("--open/--no-open", help="Open a browser; default: on a desktop.")
]


@app.command()
def dashboard(
    ctx: typer.Context,
    report: Report = None,
    *,
    port: Port = 0,
    open_: Open = None,
    data_dir: CommandDataDir = None,
    as_json: Json = False,
) -> None:
    """Open the dashboard of the running node, or of a report.

    It is served on 127.0.0.1 only; another machine reaches it through an ssh tunnel.
    """
    if report is not None:
        _serve(report, port, open_=open_, as_json=as_json)
        return
    found = _port_of(data_dir_of(ctx, data_dir))
    _tell(found, open_=open_, as_json=as_json)


def _port_of(datadir: DataDir) -> int:
    """Return the port of the daemon; raises ``NodeError`` when no daemon responds."""
    endpoint = load_api_endpoint(datadir)
    if endpoint is not None:
        connection = http.client.HTTPConnection(API_HOST, endpoint.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().status == http.client.OK:
                return endpoint.port
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
    raise NodeError(
        f"no daemon is running in {datadir.root}; start one with prime-node --role ROLE, "
        "or name its directory with --data-dir",
        ExitCode.NO_DAEMON,
    )


def _serve(report: Path, port: int, *, open_: bool | None, as_json: bool) -> None:
    """Serve a report until Ctrl-C."""
    import asyncio  # noqa: PLC0415 - unused for a running node

    from node.api.local_server import serve_recording  # noqa: PLC0415 - the same

    def told(found: int) -> None:
        _tell(found, open_=open_, as_json=as_json)
        if not as_json:
            typer.echo("Press Ctrl-C to stop.")

    try:
        asyncio.run(serve_recording(report, port, told))
    except KeyboardInterrupt:
        return


def _tell(port: int, *, open_: bool | None, as_json: bool) -> None:
    url, tunnel = f"http://{API_HOST}:{port}/", tunnel_command(port)
    if as_json:
        print_json({"url": url, "ssh": tunnel})
        sys.stdout.flush()
        return
    typer.echo(url)
    if open_ is True or (open_ is None and _has_screen()):
        webbrowser.open(url)
    else:
        typer.echo(f"From another machine: {tunnel}\nthen open the same address there.")


def tunnel_command(port: int) -> str:
    """Return the ssh command that forwards the port to another machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # neither an environment variable nor a user database entry
        user = "USER"
    return f"ssh -N -L {port}:{API_HOST}:{port} {user}@{socket.gethostname()}"


def _has_screen() -> bool:
    """Return whether this session has a local screen for a browser."""
    if "SSH_CONNECTION" in os.environ or not sys.stdout.isatty():
        return False
    return sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
