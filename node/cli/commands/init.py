"""Create the data dir and the node's key, and show its peer id."""

import typer

from node.cli.commands.context import local_paths, print_json
from node.cli.options import CommandDataDir, CommandIdentityPath, Json
from node.local.datadir import load_or_create_identity, open_data_dir

app = typer.Typer(add_completion=False)


@app.command()
def init(
    ctx: typer.Context,
    *,
    data_dir: CommandDataDir = None,
    identity_path: CommandIdentityPath = None,
    as_json: Json = False,
) -> None:
    """Create the data dir and the node's key, and show its peer id.

    Repeating it changes nothing. A node does the same at its first start.
    """
    paths = local_paths(ctx, data_dir, identity_path)
    datadir = open_data_dir(paths.data_dir)
    key = paths.identity_path or datadir.identity
    created = not key.exists()
    identity = load_or_create_identity(key)
    if as_json:
        print_json(
            {
                "peer_id": identity.peer_id,
                "data_dir": str(datadir.root),
                "identity_path": str(key),
                "created": created,
            }
        )
        return
    typer.echo(identity.peer_id)
    typer.echo(f"{'created' if created else 'kept'} {key}: back it up and keep it secret", err=True)
