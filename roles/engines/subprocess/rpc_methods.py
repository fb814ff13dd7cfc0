"""Methods of the ports that an engine process serves: types of arguments and results.

A result is sent as items, one per frame: the elements of a list, or the single value.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from protocol.core.types import DIGEST_BYTES, Digest, Version
from protocol.rollout.statistics import Measurement
from roles.engines.subprocess.wire import Kind
from roles.ports.engines import (
    Generation,
    GenerationRequest,
    Policy,
    StepMetrics,
    TrainingSequence,
    VerificationRequest,
)

SEQUENCES_MAX = 1 << 16
"""Sequences per call; a guess, far above the batches of any recipe here."""

_Count = Annotated[int, Field(ge=0, le=2**62)]
_Digest = Annotated[Digest, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Many = Field(max_length=SEQUENCES_MAX)
_Tokens = tuple[_Count, ...]
_Training = Annotated[tuple[TrainingSequence, ...], _Many]


class Method(NamedTuple):
    """Types of a method's arguments (a tuple), and of one item of its result, if it has any."""

    arguments: TypeAdapter[Any]
    item: TypeAdapter[Any] | None = None


METHODS: Mapping[Kind, Mapping[str, Method]] = {
    "generation": {
        "stage": Method(TypeAdapter(tuple[Policy]), TypeAdapter(bool)),
        "load": Method(TypeAdapter(tuple[Policy])),
        "generate": Method(
            TypeAdapter(tuple[Annotated[tuple[GenerationRequest, ...], _Many], float]),
            TypeAdapter(Generation),
        ),
    },
    "verification": {
        "load": Method(TypeAdapter(tuple[Policy])),
        "measure": Method(
            TypeAdapter(tuple[Version, Annotated[tuple[VerificationRequest, ...], _Many], float]),
            TypeAdapter(Measurement),
        ),
    },
    "training": {
        "state_bytes_max": Method(TypeAdapter(tuple[()]), TypeAdapter(_Count)),
        "load_policy": Method(TypeAdapter(tuple[Policy])),
        "recompute": Method(TypeAdapter(tuple[Policy, _Training]), TypeAdapter(TrainingSequence)),
        "begin_step": Method(TypeAdapter(tuple[_Training])),
        "end_step": Method(TypeAdapter(tuple[()]), TypeAdapter(StepMetrics)),
        "policy_digest": Method(TypeAdapter(tuple[()]), TypeAdapter(_Digest)),
        "write_policy": Method(TypeAdapter(tuple[Path]), TypeAdapter(_Digest)),
        "save_state": Method(TypeAdapter(tuple[Path])),
        "load_state": Method(TypeAdapter(tuple[Path, _Digest, Policy | None])),
        "evaluate": Method(
            TypeAdapter(tuple[Annotated[tuple[_Tokens, ...], _Many], _Count]),
            TypeAdapter(_Tokens),
        ),
    },
}
