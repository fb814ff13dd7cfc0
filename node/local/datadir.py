"""Layout, lock and key of the data directory, which holds a node's state between two starts.

=================  ===========================================================
``version``        layout version of this directory
``identity.key``   libp2p ``PrivateKey`` protobuf of the node's key, mode 0600
``run.manifest``   the one run this directory belongs to (``node.local.run_pin``)
``state.sqlite``   messages and progress
``blobs/``         content-addressed bytes
``weights/``       policies ready to load
``rows/``          sequences of a trainer's batch, deleted at each start
``task/``          the run's files: tokenizer, data set; from its creator or the swarm
``genesis…``        version 0 for a trainer to publish, if the creator left it here
``conflict``       proof of two final histories; the node does not start while it is here
``training/``      logs of training steps, as ``--log-to`` asks for them
``peers.json``     addresses that answered (``node.local.addresses``)
``api.json``       port and process id of the running daemon
``api.port``       the port that the control API had last
``LOCK``           held by the running daemon (``flock``)
=================  ===========================================================
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from node.local.errors import ExitCode, NodeError
from protocol.core.crypto import Identity, digest

LAYOUT_VERSION = 1
API_HOST = "127.0.0.1"
_SMALL_FILE_BYTES_MAX = 4096

_FILES_MAX = 200_000
"""Limit of scanned files; further files are not counted."""

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class DataDir:
    """Paths in a data directory; ``open_data_dir`` creates it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = root / "version"
        self.lock = root / "LOCK"
        self.identity = root / "identity.key"
        self.run = root / "run.manifest"
        self.state = root / "state.sqlite"
        self.blobs = root / "blobs"
        self.weights = root / "weights"
        self.rows = root / "rows"
        self.task = root / "task"
        self.genesis = root / "genesis.safetensors"
        self.conflict = root / "conflict"
        self.training = root / "training"
        self.peers = root / "peers.json"
        self.api = root / "api.json"
        self.api_port = root / "api.port"


def open_data_dir(root: Path) -> DataDir:
    """Create (mode 0700) or open a data directory; raises ``NodeError``."""
    datadir = DataDir(root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = _read_small(datadir.version)
        if found is None:
            write_atomically(datadir.version, f"{LAYOUT_VERSION}\n".encode())
    except OSError as error:
        raise _unusable(root, error) from None
    if found is not None and found.strip() != str(LAYOUT_VERSION).encode():
        layout = found.decode("ascii", "replace").strip()[:40]
        raise NodeError(
            f"data dir {root} has layout {layout!r} and this prime-node knows {LAYOUT_VERSION}; "
            "upgrade prime-node or use another --data-dir",
            ExitCode.CONFIG,
        )
    return datadir


def _unusable(root: Path, error: OSError) -> NodeError:
    return NodeError(
        f"cannot use data dir {root}: {error.strerror}; choose another --data-dir", ExitCode.LOCKED
    )


@contextmanager
def locked(datadir: DataDir) -> Iterator[None]:
    """Lock the directory for this process; raises ``NodeError`` when another one holds it."""
    try:
        descriptor = os.open(datadir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(datadir.root, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise NodeError(
                f"data dir {datadir.root} is in use by process {owner}; "
                "stop it or choose another --data-dir",
                ExitCode.LOCKED,
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def load_or_create_identity(path: Path) -> Identity:
    """Return the key in ``path``, created if missing; raises ``NodeError``."""
    try:
        return load_identity(path)
    except FileNotFoundError:
        pass
    try:
        write_atomically(path, Identity(os.urandom(32)).to_protobuf(), replace=False)
    except FileExistsError:
        pass  # another process created it meanwhile, and that key counts
    except OSError as error:
        raise NodeError(
            f"cannot create identity key {path}: {error.strerror}", ExitCode.LOCKED
        ) from None
    return load_identity(path)


def load_identity(path: Path) -> Identity:
    """Read a key whose file only its owner can read.

    Raises ``FileNotFoundError`` if it is missing and ``NodeError`` if it is unusable.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = file.read(_SMALL_FILE_BYTES_MAX)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NodeError(
            f"cannot read identity key {path}: {error.strerror}", ExitCode.KEY_PERMISSIONS
        ) from None
    if mode & 0o077:
        raise NodeError(
            f"identity key {path} is open to other users (mode {mode:04o}); run: chmod 600 {path}",
            ExitCode.KEY_PERMISSIONS,
        )
    try:
        return Identity.from_protobuf(data)
    except ValueError as error:
        raise NodeError(
            f"identity key {path} is damaged: {error}; restore it from a backup, "
            "or move it away to become a new peer",
            ExitCode.CONFIG,
        ) from None


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """Port of a daemon's control API on 127.0.0.1, and the daemon's process id."""

    port: int
    pid: int


def store_api_endpoint(datadir: DataDir, port: int) -> None:
    """Write the control API's port and process id for local programs."""
    endpoint = {"port": port, "pid": os.getpid()}
    write_atomically(datadir.api, json.dumps(endpoint).encode())
    if last_api_port(datadir) != port:
        write_atomically(datadir.api_port, f"{port}\n".encode())


def store_conflict(datadir: DataDir, proof: bytes) -> str:
    """Write the proof of two final histories of the run; return where it is, or why it is not."""
    try:
        write_atomically(datadir.conflict, proof)
    except OSError as error:
        return f"the proof cannot be written to {datadir.conflict}: {error.strerror}"
    return f"the proof is in {datadir.conflict}"


def last_api_port(datadir: DataDir) -> int:
    """Return the last port of the control API, 0 before the first start."""
    with suppress(OSError, ValueError):
        port = int(_read_small(datadir.api_port) or b"0")
        return port if 0 < port < 65_536 else 0
    return 0


def load_api_endpoint(datadir: DataDir) -> ApiEndpoint | None:
    """Return the stored control API endpoint; its daemon may be dead."""
    try:
        values = json.loads(_read_small(datadir.api) or b"")
        return ApiEndpoint(int(values["port"]), int(values["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_atomically(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file (mode 0600) atomically and durably.

    Without ``replace`` an existing file stays and ``FileExistsError`` is raised.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            Path(name).replace(path)
        else:
            os.link(name, path)
        sync_directory(path.parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108 - mkstemp returns a string


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_small(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_SMALL_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None


def machine_fingerprint(datadir: DataDir) -> bytes:
    """Return a fingerprint of machine and directory.

    It is stable over a rename, a reboot, and another container on the same volume.
    """
    machine = b""
    for file in _MACHINE_IDS:
        with suppress(OSError):
            machine = file.read_bytes().strip()
            break
    return digest(b"prime-node/place" + machine + b"/%d" % datadir.root.stat().st_ino)[:8]


def bytes_under(directory: Path) -> int:
    """Return the disk usage of a directory; hard links count once."""
    seen: dict[int, int] = {}
    folders = [str(directory)]
    while folders and len(seen) < _FILES_MAX:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        stat = entry.stat(follow_symlinks=False)
                        seen[stat.st_ino] = stat.st_blocks * 512
        except OSError:  # deleted during the scan
            continue
    return sum(seen.values())
