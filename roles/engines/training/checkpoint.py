"""The trainer's durable state: model, optimizer and progress in one file, written atomically."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from roles.engines.qwen2.policy import make_durable

_FORMAT = 1


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write ``state`` so that ``path`` is old or complete, also after a power cut."""
    partial = path.with_name(path.name + ".partial")
    torch.save({"format": _FORMAT, **state}, partial)
    make_durable(partial, path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return what ``save_checkpoint`` wrote; raises ``ValueError`` when it is damaged or absent.

    Only tensors and plain containers are read: a checkpoint from elsewhere cannot run code. The
    zip checksums are verified, because torch alone would load flipped bits as weights.
    """
    try:
        with zipfile.ZipFile(path) as message_log:
            damaged = message_log.testzip()
        if damaged is not None:
            raise ValueError(f"{path} is damaged at {damaged}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path} is not a readable checkpoint: {error}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise ValueError(f"{path} has another checkpoint format")
    return state
