"""Where a data directory is: what it loses when it is copied, or taken to another machine."""

from contextlib import suppress
from pathlib import Path

from node.local.datadir import DataDir
from protocol.core.crypto import digest

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


def machine_fingerprint(datadir: DataDir) -> bytes:
    """Return some bytes that stay while a directory does.

    A renamed directory, a restart of the machine and another container over one volume keep them.
    """
    machine = b""
    for file in _MACHINE_IDS:
        with suppress(OSError):
            machine = file.read_bytes().strip()
            break
    return digest(b"prime-node/place" + machine + b"/%d" % datadir.root.stat().st_ino)[:8]
