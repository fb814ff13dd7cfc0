"""Show the versions of prime-node and of its protocol."""

import platform
from importlib.metadata import version as installed_version

import typer

from node.cli.commands.context import print_json
from node.cli.options import Json

app = typer.Typer(add_completion=False)


def versions() -> dict[str, str | int]:
    """Return the versions that a bug report should name."""
    from protocol.messages import PROTOCOL_VERSION  # noqa: PLC0415 - pydantic; help does without

    return {
        "prime_node": installed_version("prime-node"),
        "protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
    }


def version_line() -> str:
    """Return the versions on one line."""
    known = versions()
    return (
        f"prime-node {known['prime_node']} (protocol {known['protocol']}, "
        f"Python {known['python']}, {known['platform']})"
    )


@app.command()
def version(*, as_json: Json = False) -> None:
    """Show the versions of prime-node and of its protocol."""
    if as_json:
        print_json(versions())
    else:
        typer.echo(version_line())
