"""Export of a held version as a Hugging Face directory that transformers and vLLM load."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.founding.creation import staging
from node.founding.found import manifest_toml
from node.local.datadir import sync_directory
from node.local.errors import ExitCode, NodeError
from node.models.card import card_of
from node.models.held import MANIFEST, HeldRun, HeldVersion
from node.storage.files import write_synced
from roles.ports.storage import StorageFullError

_CONFIG, _GENERATION, _CARD = "config.json", "generation_config.json", "README.md"
"""Generated files; all others come from the run's bundle."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Exported directory."""

    out: Path
    version: int
    digest: str
    total_bytes: int
    has_tokenizer: bool


def export(held: HeldRun, version: HeldVersion, out: Path) -> Exported:
    """Write a version to ``out``, atomically.

    Raises ``NodeError`` if ``out`` exists, and if the weights differ from those that the run's
    trainer signed.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError(f"{out} exists; --out takes a new directory", ExitCode.USAGE)
    out = out.absolute()
    files = held.small_files()
    with staging(out) as scratch:
        directory = scratch / "model"
        directory.mkdir()
        total_bytes = _write_weights(version, directory)
        for name, content in _others(held, version, files).items():
            write_synced(directory / name, content)
        sync_directory(directory)
        directory.rename(out)
        sync_directory(out.parent)
    return Exported(
        out, version.version, version.digest.hex(), total_bytes, "tokenizer.json" in files
    )


def _write_weights(version: HeldVersion, directory: Path) -> int:
    from roles.engines.bootstrap.huggingface_export import export_weights  # noqa: PLC0415 - torch takes seconds

    try:
        return export_weights(version.path, version.digest, directory)
    except StorageFullError as error:
        raise NodeError(f"{error}; free some or take another --out", ExitCode.LOCKED) from None
    except ValueError as error:
        if not version.path.exists():
            raise NodeError(
                f"version {version.version} was deleted meanwhile: a node keeps the newest ones; "
                "repeat the command",
                ExitCode.RETRY,
            ) from None
        raise NodeError(
            f"version {version.version} cannot be exported: {error}; delete that file and start "
            "the node, which fetches it again, or take another version",
            ExitCode.CONFIG,
        ) from None


def _others(held: HeldRun, version: HeldVersion, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return all files except the weights, by name."""
    from roles.engines.bootstrap.huggingface_export import config_of, generation_config_of  # noqa: PLC0415 - as above

    published = json.loads(files[_CONFIG].decode("utf-8-sig")) if _CONFIG in files else None
    config = config_of(held.manifest.model, published)
    written = {
        _CONFIG: _encoded(config),
        _GENERATION: files.get(_GENERATION) or _encoded(generation_config_of(config)),
        _CARD: card_of(held, version, files).encode(),
        MANIFEST: manifest_toml(held.signed).encode(),
    }
    return {**files, **written}


def _encoded(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
