"""Methods of the ports that an engine process serves: types of arguments and results.

A result is sent as items, one per frame: the elements of a list, or the single value. A method has
at most one long argument, whose elements are sent before the call.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from protocol.core.types import DIGEST_BYTES, Digest, Version
from protocol.messages import ROUND_TRAINERS_MAX
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

ELEMENTS_MAX = 1 << 20
"""Elements of the long argument of a call; a guess, far above the batches of any recipe here."""

_Count = Annotated[int, Field(ge=0, le=2**62)]
_Digest = Annotated[Digest, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Tokens = tuple[_Count, ...]
_Differences = Annotated[tuple[tuple[_Digest, Path], ...], Field(max_length=ROUND_TRAINERS_MAX)]


class LongArgument(NamedTuple):
    """Place of a method's long argument among its arguments, and the type of its elements."""

    place: int
    element: TypeAdapter[Any]


class Method(NamedTuple):
    """Types of a method's arguments (a tuple), and of one item of its result, if it has any.

    ``long`` is not among the ``arguments``.
    """

    arguments: TypeAdapter[Any]
    item: TypeAdapter[Any] | None = None
    long: LongArgument | None = None


_SEQUENCE = TypeAdapter(TrainingSequence)

METHODS: Mapping[Kind, Mapping[str, Method]] = {
    "generation": {
        "stage": Method(TypeAdapter(tuple[Policy]), TypeAdapter(bool)),
        "load": Method(TypeAdapter(tuple[Policy])),
        "generate": Method(
            TypeAdapter(tuple[float]),
            TypeAdapter(Generation),
            LongArgument(0, TypeAdapter(GenerationRequest)),
        ),
    },
    "verification": {
        "load": Method(TypeAdapter(tuple[Policy])),
        "measure": Method(
            TypeAdapter(tuple[Version, float]),
            TypeAdapter(Measurement),
            LongArgument(1, TypeAdapter(VerificationRequest)),
        ),
    },
    "training": {
        "state_bytes_max": Method(TypeAdapter(tuple[()]), TypeAdapter(_Count)),
        "load_policy": Method(TypeAdapter(tuple[Policy])),
        "recompute": Method(
            TypeAdapter(tuple[Policy, Path | None]), _SEQUENCE, LongArgument(1, _SEQUENCE)
        ),
        "begin_step": Method(TypeAdapter(tuple[()]), long=LongArgument(0, _SEQUENCE)),
        "end_step": Method(TypeAdapter(tuple[()]), TypeAdapter(StepMetrics)),
        "policy_digest": Method(TypeAdapter(tuple[()]), TypeAdapter(_Digest)),
        "write_policy": Method(TypeAdapter(tuple[Path]), TypeAdapter(_Digest)),
        "save_state": Method(TypeAdapter(tuple[Path])),
        "load_state": Method(TypeAdapter(tuple[Path, _Digest, Policy | None])),
        "begin_round": Method(TypeAdapter(tuple[()])),
        "write_difference": Method(TypeAdapter(tuple[Path]), TypeAdapter(_Digest)),
        "check_difference": Method(TypeAdapter(tuple[_Digest, Path])),
        "apply_differences": Method(TypeAdapter(tuple[_Differences])),
        "evaluate": Method(
            TypeAdapter(tuple[_Count]), TypeAdapter(_Tokens), LongArgument(0, TypeAdapter(_Tokens))
        ),
    },
}
