"""Entry point of ``prime-node``, which runs a node unless a command is given.

Heavy modules are imported after the command line is parsed, so help and usage errors appear at
once. A usage error is one line on standard error; a traceback is a bug.
"""

import codecs
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer

from node.cli import options
from node.cli.loading import CommandGroup
from node.local.errors import ExitCode, NodeError

NAME = "prime-node"

_REPLACE = "prime-node-plain"
_ASCII = {"…": "...", "·": "-", "✓": "+", "✗": "x", "●": "*", "◆": "*", "→": "->", "█": "#"}
"""ASCII for the characters that commands print, where standard output lacks them."""

EPILOG = """\
Every option is also a key of the config file and an environment variable:
PRIME_NODE_PORT, PRIME_NODE_DATA_DIR, PRIME_NODE_ROLES … A flag overrides a
variable, a variable overrides the file.

Exit codes
  0  done or drained     73  data dir in use      77  key readable by others
  1  crash or failure    75  try again later      78  bad configuration
  2  usage error         76  other history of    130  interrupted
 69  no daemon running       the run
"""

app = typer.Typer(
    cls=CommandGroup,
    name=NAME,
    epilog=EPILOG,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from node.cli.commands.version import version_line  # noqa: PLC0415 - only when asked

        typer.echo(version_line())
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
]


@app.callback()
def node(
    ctx: typer.Context,
    *,
    roles: options.Roles = None,
    initial_peers: options.InitialPeers = None,
    new_swarm: options.NewSwarm = None,
    run: options.Run = None,
    run_id: options.RunId = None,
    page: options.Page = None,
    yes: options.Yes = None,
    invite: options.Invite = None,
    name: options.Name = None,
    config: options.Config = None,
    data_dir: options.DataDir = None,
    identity_path: options.IdentityPath = None,
    device: options.Device = None,
    engine: options.Engine = None,
    engine_gpus: options.EngineGpus = None,
    engine_python: options.EnginePython = None,
    engine_memory: options.EngineMemory = None,
    engine_server: options.EngineServer = None,
    trainer_ranks: options.TrainerRanks = None,
    trainer_devices: options.TrainerDevices = None,
    blob_quota: options.BlobQuota = None,
    api_port: options.ApiPort = None,
    log_format: options.LogFormat = None,
    log_level: options.LogLevel = None,
    log_to: options.LogTo = None,
    host: options.Host = None,
    port: options.Port = None,
    host_maddr: options.HostMaddr = None,
    public_ip: options.PublicIp = None,
    announce_maddrs: options.AnnounceMaddrs = None,
    http_port: options.HttpPort = None,
    upload_limit: options.UploadLimit = None,
    version: Version = False,
) -> int | None:
    """Train a language model by reinforcement learning in a peer-to-peer swarm.

    To join a run: prime-node --role inference --initial-peers ADDR

    To run a whole swarm on this machine: prime-node testnet
    """
    given = {name: value for name, value in locals().items() if value not in (ctx, None, False, [])}
    if ctx.invoked_subcommand is None:
        return start(given)
    misplaced = [name for name in given if name not in ("data_dir", "identity_path")]
    if misplaced:
        from node.local.config import flag  # noqa: PLC0415 - pydantic; help does without

        raise NodeError(
            f"{flag(misplaced[0])} is for running a node; put the options of "
            f"{ctx.invoked_subcommand} after that word",
            ExitCode.USAGE,
        )
    return None


def start(flags: dict[str, Any]) -> int:
    """Run a node in the foreground until it is stopped; return its exit code."""
    from node.cli.preflight import preflight  # noqa: PLC0415 - the same
    from node.local.config import load_config  # noqa: PLC0415 - pydantic; help does without

    file = flags.pop("config", None)
    config = load_config(flags, os.environ, file)
    preflight(config)
    from node.process.runner import run_node  # noqa: PLC0415 - torch and hivemind, seconds

    return run_node(config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``prime-node`` with ``arguments`` (default ``sys.argv``) and return its exit code."""
    tolerate_encoding(sys.stdout)  # standard error replaces unencodable characters by itself
    try:
        result = app(args=arguments, prog_name=NAME, standalone_mode=False)
    except NodeError as error:
        return _fail(error.message, error.exit_code)
    except typer.TyperException as error:  # a usage error found by typer
        return _fail(_usage(error), ExitCode.USAGE)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    return int(result or ExitCode.OK)


def tolerate_encoding(stream: TextIO) -> None:
    """Print ASCII for characters that the stream's encoding lacks, instead of raising."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=_REPLACE)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in lacking), error.end


codecs.register_error(_REPLACE, _replace)


def _usage(error: typer.TyperException) -> str:
    """Return the usage error and the help command to see."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if context is None:
        return f"{message}; see {NAME} --help"
    if type(error).__name__ == "NoArgsIsHelpError":  # typer has printed the help
        names = ", ".join(context.command.list_commands(context))
        message = f"{context.info_name} needs a command: {names}"
    return f"{message}; see {context.command_path} --help"


def _fail(message: str, exit_code: ExitCode) -> int:
    sys.stderr.write(f"{NAME}: error: {' '.join(message.split())}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
