"""Digest of an installed package's own files, independent of the installer."""

from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

from blake3 import blake3

_SCRIPTS = ("bin", "Scripts")
"""Directories of installed programs, which contain the path of their interpreter."""


def package_files(package: str) -> dict[str, Path]:
    """Return the files of an installed package by their sorted names in its directory.

    Metadata are excluded because they depend on the installer; so are compiled files. Raises
    ``PackageNotFoundError``, and ``ValueError`` for a package without files or with files outside
    of its directory.
    """
    found = distribution(package)
    files = {}
    for file in sorted(found.files or (), key=str):
        name = PurePosixPath(file)
        if name.suffix == ".pyc" or name.parts[0].endswith(".dist-info"):
            continue
        if name.is_absolute() or name.parts[0] == "..":
            if name.parent.name in _SCRIPTS:
                continue
            raise ValueError(f"{package} has files outside of its directory: {name}")
        files[str(name)] = Path(str(found.locate_file(file)))
    if not files:
        raise ValueError(f"{package} lists no files of its own")
    return files


def package_digest(package: str) -> str:
    """Return the BLAKE3 digest of the names and contents of a package's files, in hexadecimal.

    Each name (UTF-8) and each content follows its length, 8 bytes big-endian. Raises as
    ``package_files``, and ``ValueError`` for a missing file.
    """
    whole = blake3()
    for name, path in package_files(package).items():
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{package}: cannot read {name}: {error.strerror}") from None
        for part in (name.encode(), content):
            whole.update(len(part).to_bytes(8, "big"))
            whole.update(part)
    return whole.hexdigest()
