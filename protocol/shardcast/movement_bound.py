"""Bound on the movement of a weight between two versions, and a movement beyond it.

A published weight is the rounding of a float32 master. Rounding is monotone: a larger master never
has a smaller policy weight, with dithered rounding neither, since the threshold of a weight is
fixed. So a master that moves by ``d`` moves its policy weight by less than ``d`` plus one unit in
the last place, of the larger of both weights. If the sign changes, both roundings may be away from
zero, which adds one unit of each.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MovementBound:
    """Largest movement of a master weight in ``updates`` updates of an optimiser.

    ``step`` is the movement of a weight of 0; ``decay`` is the share of a weight that it may lose
    in addition. The rounding to the published type and of float32 arithmetic come on top.
    """

    updates: int
    step: float
    decay: float


@dataclass(frozen=True, slots=True)
class ExcessiveMovement:
    """Movement of a weight beyond its bound.

    ``tensor`` is a name that the trainer chose, empty if the file does not hold the tensors of the
    version before. ``ratio`` is the movement over its bound, infinite for a weight that is no
    finite number, and for a changed weight of a type that training does not move.
    """

    tensor: str
    ratio: float

    def __str__(self) -> str:
        if not self.tensor:
            return "its file does not hold the tensors of the version before"
        return f"a weight of {self.tensor} moves {self.ratio:.3g} times as far as training may"


class ExcessiveMovementError(ValueError):
    """A version holds the tensors that its trainer signed, and these move beyond their bound."""

    def __init__(self, excess: ExcessiveMovement) -> None:
        super().__init__(str(excess))
        self.excess = excess
