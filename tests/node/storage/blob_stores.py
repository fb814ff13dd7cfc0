"""Both implementations of the ``Blobs`` port, and what survives a restart of each."""

from pathlib import Path

from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from protocol.crypto import digest
from roles.ports.storage import Owner, Purpose
from simulations.ports.policy_files import SimPolicyFiles
from simulations.ports.storage import Disk, Session, SimBlobs


def owner(name: bytes, purpose: Purpose = Purpose.ROLLOUT_BODY) -> Owner:
    return Owner(purpose, digest(name))


class FileMachine:
    """A directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def restart(self) -> None:
        self.blobs = FileBlobs(self._directory / "blobs")
        self.files = PolicyDirectory(
            self._directory / "weights",
            self._directory / "genesis",
            self._directory / "task",
            self.blobs,
        )

    def write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()


class SimMachine:
    """A simulated disk; the ports of the session before change nothing any more."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = Disk()
        self._session = Session()

    def restart(self) -> None:
        self._session.alive = False
        self._session = Session()
        self.blobs = SimBlobs(self._disk, self._session)
        self.files = SimPolicyFiles(
            self._disk,
            self._session,
            self._directory / "weights",
            self._directory / "genesis",
            self._directory / "task",
        )

    def write(self, path: Path, content: bytes) -> None:
        self._disk.files[path] = content

    def read(self, path: Path) -> bytes:
        return self._disk.files[path]


MACHINES = {"files": FileMachine, "simulated": SimMachine}
