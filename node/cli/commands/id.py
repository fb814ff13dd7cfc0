"""Show the node's peer id."""

import typer

from node.cli.commands.context import local_paths, print_json
from node.cli.options import CommandDataDir, CommandIdentityPath, Json
from node.local.datadir import DataDir, load_identity
from node.local.errors import ExitCode, NodeError

app = typer.Typer(add_completion=False)


@app.command("id")
def show_id(
    ctx: typer.Context,
    *,
    data_dir: CommandDataDir = None,
    identity_path: CommandIdentityPath = None,
    as_json: Json = False,
) -> None:
    """Show the node's peer id, also while the node is stopped."""
    paths = local_paths(ctx, data_dir, identity_path)
    key = paths.identity_path or DataDir(paths.data_dir).identity
    try:
        peer_id = load_identity(key).peer_id
    except FileNotFoundError:
        raise NodeError(
            f"there is no key {key} yet; prime-node init makes one", ExitCode.CONFIG
        ) from None
    if as_json:
        print_json({"peer_id": peer_id})
    else:
        typer.echo(peer_id)
