"""Fingerprint of a data directory's location, which a copied or moved directory changes."""

from contextlib import suppress
from pathlib import Path

from node.local.datadir import DataDir
from protocol.core.crypto import digest

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


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
