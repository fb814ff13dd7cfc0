"""Binding of a data directory to one run, for ever.

Blobs, progress and receipts of two runs never mix, and the node refuses peers of another run.
"""

from pathlib import Path

from node.local.datadir import DataDir, write_atomically
from node.local.errors import ExitCode, NodeError
from protocol.core.crypto import verify
from protocol.core.faults import Fault
from protocol.run.manifest import (
    MANIFEST_BYTES_MAX,
    SignedManifest,
    decode_signed_manifest,
    load_signed_manifest,
)
from protocol.run.toml import ManifestError


def pinned_run(datadir: DataDir) -> SignedManifest | None:
    """Return the run of the directory, if any; raises ``NodeError`` when it is damaged."""
    try:
        data = datadir.run.read_bytes()
    except FileNotFoundError:
        return None
    signed = decode_signed_manifest(data, verify)
    if isinstance(signed, Fault):
        raise NodeError(
            f"{datadir.run} is damaged ({signed}); give the manifest again in another --data-dir",
            ExitCode.CONFIG,
        )
    return signed


def pin_run(datadir: DataDir, run: SignedManifest) -> None:
    """Bind the directory to ``run``; raises ``NodeError`` when it belongs to another run."""
    if not _is_pinned(datadir, run, "the peers offer"):
        write_atomically(datadir.run, run.encoded())


def local_run(datadir: DataDir, run: Path | None, run_id: str | None) -> SignedManifest | None:
    """Return the run known without any peer, and pin it; raises as ``known_run``.

    It is the manifest file ``run`` if given, else the pinned one.
    """
    known = known_run(datadir, run, run_id)
    if known is not None:
        pin_run(datadir, known)
    return known


def known_run(datadir: DataDir, run: Path | None, run_id: str | None) -> SignedManifest | None:
    """Return the same as ``local_run`` but write nothing: the directory need not exist.

    Raises ``NodeError`` when the manifest file ``run`` and the pinned one differ from each other or
    from ``run_id`` (64 hexadecimal digits).
    """
    known = load_run(run) if run is not None else pinned_run(datadir)
    if known is None:
        return None
    if run_id is not None and known.manifest.run_id.hex() != run_id:
        source = f"{run} is" if run is not None else f"data dir {datadir.root} belongs to"
        raise NodeError(
            f"--run-id asks for run {run_id[:12]}…, {source} run {_short(known)}",
            ExitCode.CONFIG,
        )
    _is_pinned(datadir, known, f"{run} is")
    return known


def _is_pinned(datadir: DataDir, run: SignedManifest, source: str) -> bool:
    """Return whether the directory belongs to ``run``; raises ``NodeError`` for another run."""
    pinned = pinned_run(datadir)
    if pinned is None:
        return False
    if pinned.manifest.run_id != run.manifest.run_id:
        raise NodeError(
            f"data dir {datadir.root} belongs to run {_short(pinned)}, "
            f"{source} run {_short(run)}; use another --data-dir",
            ExitCode.CONFIG,
        )
    return True


def load_run(path: Path) -> SignedManifest:
    """Read a manifest file (TOML, signed); raises ``NodeError`` naming the wrong key."""
    try:
        with path.open("rb") as file:
            text = file.read(MANIFEST_BYTES_MAX).decode("utf-8-sig")
        return load_signed_manifest(text, verify)
    except OSError as error:
        raise NodeError(f"cannot read {path}: {error.strerror}", ExitCode.CONFIG) from None
    except UnicodeDecodeError:
        raise NodeError(f"{path}: not a text file", ExitCode.CONFIG) from None
    except ManifestError as error:
        raise NodeError(f"{path}: {error}", ExitCode.CONFIG) from None


def _short(run: SignedManifest) -> str:
    return f"{run.manifest.run_id.hex()[:12]}…"
