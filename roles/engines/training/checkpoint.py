"""Trainer checkpoint: weights, AdamW's moments and progress in one safetensors file.

It may come from another trainer, so everything in it is checked. The optimizer's settings are not
in it: they are in the manifest.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protocol.core.types import Digest
from protocol.run.training_bound import moment_ratio_max
from roles.engines.files.safetensors import Shapes, file_bytes_max, read_tensors
from roles.engines.training.ranks import ALONE, Ranks
from roles.engines.training.shared_files import shared_digest, write_rows

_FORMAT = "3"

_KINDS = ("weights", "first_moments", "second_moments")

_OUTER_KINDS = (*_KINDS, "outer_momentum")
"""Of a run with outer steps."""

_ROUNDING = 1.01
"""Tolerance for rounding on a moment's bound; a guess, far above what float32 needs."""

_NEGLIGIBLE = 1e-18
"""A smaller moment moves nothing, and its square may have been rounded to zero."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Checkpoint contents; all tensors are float32, keyed by parameter name."""

    weights: dict[str, Tensor]
    first_moments: dict[str, Tensor]
    second_moments: dict[str, Tensor]
    steps: int
    """Updates of the optimiser."""
    version: int
    """Version of the policy: the schedule of the learning rate follows it."""
    outer_momentum: dict[str, Tensor] | None = None
    """Of a run with outer steps only; its weights are the outer ones."""


def checkpoint_bytes_max(shapes: Shapes, *, outer: bool = False) -> int:
    """Return the maximum bytes of a checkpoint of a model with such parameters.

    ``outer``: of a run with outer steps.
    """
    return file_bytes_max(_layout(shapes, outer=outer))


def save_checkpoint(state: TrainingState, path: Path, shapes: Shapes, ranks: Ranks = ALONE) -> None:
    """Write ``state``, of which each rank has its rows, atomically; raises ``StorageFullError``."""
    groups = (state.weights, state.first_moments, state.second_moments, state.outer_momentum)
    tensors = {
        f"{kind}/{name}": tensor
        for kind, group in zip(_OUTER_KINDS, groups, strict=True)
        for name, tensor in (group or {}).items()
    }
    numbers = {"steps": str(state.steps), "version": str(state.version)}

    def metadata(digest: Digest) -> dict[str, str]:
        return {"format": _FORMAT, **numbers, "digest": digest.hex()}

    layout = _layout(shapes, outer=state.outer_momentum is not None)
    write_rows(path, tensors, layout, ranks, metadata=metadata)


def load_checkpoint(
    path: Path, shapes: Shapes, ranks: Ranks = ALONE, *, outer: bool = False
) -> TrainingState:
    """Load a whole checkpoint to the CPU; ``ValueError`` if it is damaged or of another model.

    The ranks share the reading for its digest.
    """
    layout = _layout(shapes, outer=outer)
    tensors, metadata = ranks.together(lambda: read_tensors(path, layout))
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path} has another checkpoint format")
    if any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise ValueError(f"{path} is not in float32")
    if shared_digest(tensors, ranks).hex() != metadata.get("digest"):
        raise ValueError(f"{path} is damaged")
    weights, first, second = ({n: tensors[f"{kind}/{n}"] for n in shapes} for kind in _KINDS)
    momentum = {n: tensors[f"outer_momentum/{n}"] for n in shapes} if outer else None
    steps, version = (int(metadata.get(key, "")) for key in ("steps", "version"))
    return TrainingState(weights, first, second, steps, version, momentum)


def check_moments(
    state: TrainingState, betas: tuple[float, float], ranks: Ranks = ALONE, *, capped: bool = False
) -> None:
    """Raise ``ValueError`` for moments that no gradients produce: they move a weight anywhere.

    The bound depends on the number of updates (``protocol.run.training_bound``): the correction of
    the moments' bias is largest in the first updates. Each rank checks its rows. ``capped``: there
    may have been more updates than the state's number.
    """
    bound = _ROUNDING * moment_ratio_max(betas, None if capped else state.steps)

    def check() -> None:
        for name in state.first_moments:
            first = ranks.rows(state.first_moments[name])
            second = ranks.rows(state.second_moments[name])
            finite = bool(first.isfinite().all()) and bool(second.isfinite().all())
            if not finite or bool((second < 0).any()):
                raise ValueError(f"the moments of {name} are not finite, or negative")
            if bool((first.abs() > bound * second.sqrt() + _NEGLIGIBLE).any()):
                raise ValueError(f"the moments of {name} are inconsistent")

    ranks.together(check)


def _layout(shapes: Shapes, *, outer: bool) -> Shapes:
    kinds = _OUTER_KINDS if outer else _KINDS
    return {f"{kind}/{name}": shape for kind in kinds for name, shape in shapes.items()}
