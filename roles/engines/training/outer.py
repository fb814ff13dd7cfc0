"""Outer steps: differences of several trainers as files, and the step that all of them take.

Everything runs on the CPU in float32, one operation at a time and in a fixed order, so that each
node that has the files computes the same bits, with any number of ranks and any accelerator.

A difference is one safetensors file. A tensor with rows is ``codes/NAME`` in int8 and
``scales/NAME`` in float32, one for each 256 elements of a row: ranks share whole rows, so the bytes
do not depend on their number. Vectors, and all tensors of the encoding float32, are
``values/NAME``. What rounding leaves out, the trainer adds to its next difference.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from protocol.core.types import Digest
from protocol.run.outer_bound import difference_bound, outer_bound, round_settings
from protocol.run.recipe import GrpoSection
from protocol.run.sections import DifferenceEncoding, OuterSection
from protocol.shardcast.movement_bound import MovementBound
from roles.engines.files.safetensors import CODED_DTYPES, Shapes, read_tensors
from roles.engines.training.checkpoint import TrainingState
from roles.engines.training.ranks import Ranks
from roles.engines.training.shared_files import shared_digest, write_rows

BLOCK = 256
"""Elements of a row with one scale."""

_CODE_MAX = 127

_TOLERANCE = 1 + 1e-6
"""On a bound: ``code * scale`` may round upwards."""

_MOMENTUM_TOLERANCE = 1.01
"""On the momentum of a state, for weights that were larger before: half of the bound's slack."""

_DTYPES = {"codes": torch.int8, "scales": torch.float32, "values": torch.float32}

Tensors = Mapping[str, Tensor]


def difference_layout(shapes: Shapes, encoding: DifferenceEncoding) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a difference of weights of such shapes."""
    layout: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if encoding == "int8" and len(shape) > 1:
            layout[f"codes/{name}"] = tuple(shape)
            layout[f"scales/{name}"] = (shape[0], math.ceil(math.prod(shape[1:]) / BLOCK))
        else:
            layout[f"values/{name}"] = tuple(shape)
    return layout


def encode(
    name: str, values: Tensor, limits: Tensor, encoding: DifferenceEncoding
) -> dict[str, Tensor]:
    """Encode rows of a difference such that no decoded element exceeds ``limits``."""
    near = values.clamp(-limits, limits)
    if encoding == "float32" or values.dim() == 1:
        return {f"values/{name}": near}
    blocks = _blocks(near)
    scales = blocks.abs().amax(-1, keepdim=True) / _CODE_MAX
    largest = (_blocks(limits) / scales).floor().clamp(max=_CODE_MAX)
    codes = (blocks / scales).round().clamp(-largest, largest).nan_to_num(nan=0.0)  # 0 / 0
    return {
        f"codes/{name}": _rows(codes, near.shape).to(torch.int8),
        f"scales/{name}": scales.squeeze(-1),
    }


def decode(name: str, tensors: Tensors) -> Tensor:
    """Decode rows of a difference to float32."""
    if (values := tensors.get(f"values/{name}")) is not None:
        return values
    codes, scales = tensors[f"codes/{name}"], tensors[f"scales/{name}"]
    return _rows(_blocks(codes.float()) * scales[..., None], codes.shape)


def _blocks(rows: Tensor) -> Tensor:
    """Return rows as (row, block, element), the last block filled up with zeros."""
    flat = rows.flatten(1)
    padded = pad(flat, (0, -flat.shape[1] % BLOCK))
    return padded.reshape(len(rows), padded.shape[1] // BLOCK, BLOCK)


def _rows(blocks: Tensor, shape: Sequence[int]) -> Tensor:
    """Undo ``_blocks``."""
    return blocks.flatten(1)[:, : math.prod(shape[1:])].reshape(shape)


def limits_of(bound: MovementBound, weights: Tensor) -> Tensor:
    """Return the largest difference of each element of the outer weights."""
    return weights.abs() * bound.decay + bound.step


class OuterOptimizer:
    """Outer weights of a rank's rows, their momentum, and what differences left out so far.

    ``masters`` are the trainer's weights at the beginning of a round. A trainer begins with the
    ``momentum`` of a state, or with none.
    """

    def __init__(
        self,
        rule: OuterSection,
        bound: MovementBound,
        masters: Tensors,
        ranks: Ranks,
        momentum: Tensors | None = None,
    ) -> None:
        self._rule, self._bound, self._ranks = rule, bound, ranks
        self.weights = {n: one.detach().to("cpu", copy=True) for n, one in masters.items()}
        self.momentum = _zeros(self.weights) if momentum is None else dict(momentum)
        self._left: Tensors = _zeros(self.weights)
        self._sent: tuple[Digest, Tensors] | None = None

    def write(self, path: Path, masters: Tensors, shapes: Shapes) -> Digest:
        """Write the difference of the trainer's weights atomically; return its digest.

        Raises ``StorageFullError``. A second call before the next step replaces the first.
        """
        sent: dict[str, Tensor] = {}
        left = {}
        for name, weights in self.weights.items():
            wanted = weights - masters[name].detach().cpu() + self._left[name]
            limits = limits_of(self._bound, weights)
            made = encode(name, wanted, limits, self._rule.encoding)
            left[name] = wanted - decode(name, made)
            sent |= made
        layout = difference_layout(shapes, self._rule.encoding)
        digest = write_rows(path, sent, layout, self._ranks.writer)
        self._sent = digest, left
        return digest

    def check(self, difference: Digest, path: Path, shapes: Shapes) -> None:
        """Raise ``ValueError`` for a file by which ``step`` would refuse to step."""
        self._read(difference, path, shapes)

    def step(self, files: Sequence[tuple[Digest, Path]], shapes: Shapes) -> None:
        """Take the outer step by the mean of differences, added up in the given order.

        Raises ``ValueError`` and changes nothing if there is none, or for a file that is damaged,
        of other tensors, or beyond the bound. What this trainer's difference left out counts as
        left out only if the difference is among them.
        """
        if not files:
            raise ValueError("no difference to step by")
        differences = [self._read(digest, path, shapes) for digest, path in files]
        for name in self.weights:
            outer_step(self._rule, self.weights[name], self.momentum[name], name, differences)
        if self._sent is not None and self._sent[0] in {digest for digest, _ in files}:
            self._left = self._sent[1]
        self._sent = None

    def _read(self, digest: Digest, path: Path, shapes: Shapes) -> Tensors:
        """Return this rank's rows of a difference of any trainer."""
        layout = difference_layout(shapes, self._rule.encoding)
        tensors, _ = self._ranks.together(lambda: read_tensors(path, layout, CODED_DTYPES))
        if any(one.dtype != _DTYPES[name.partition("/")[0]] for name, one in tensors.items()):
            raise ValueError(f"{path} is not encoded as {self._rule.encoding}")
        if shared_digest(tensors, self._ranks) != digest:
            raise ValueError(f"{path} does not hold the difference {digest.hex()}")
        own = {name: self._ranks.rows(one) for name, one in tensors.items()}

        def check() -> None:
            for name, weights in self.weights.items():
                limits = limits_of(self._bound, weights) * _TOLERANCE
                if not bool((decode(name, own).abs() <= limits).all()):  # nor NaN
                    raise ValueError(f"{path} moves a weight of {name} farther than training may")

        self._ranks.together(check)
        return own


def outer_step(
    rule: OuterSection, weights: Tensor, momentum: Tensor, name: str, differences: Sequence[Tensors]
) -> None:
    """Change rows of outer weights and their momentum in place.

    Each operation rounds on its own: a fused one has other bits on some devices.
    """
    total = decode(name, differences[0])
    for one in differences[1:]:
        total = total + decode(name, one)  # not in place: it may be a tensor of a file
    mean = total / len(differences)
    momentum *= rule.momentum
    momentum += mean
    ahead = momentum * rule.momentum
    ahead += mean
    ahead *= rule.learning_rate
    weights -= ahead


def _zeros(tensors: Tensors) -> dict[str, Tensor]:
    return {name: torch.zeros_like(one) for name, one in tensors.items()}


class OuterRounds:
    """Rounds of a trainer by the run's rule; raises ``ValueError`` if they have no bound."""

    def __init__(self, rule: OuterSection, grpo: GrpoSection, ranks: Ranks) -> None:
        bound = difference_bound(grpo, rule)
        if bound is None or outer_bound(grpo, rule, 1) is None:
            raise ValueError(f"weights can move without bound by {rule}")
        self._rule, self._bound, self._ranks = rule, bound, ranks
        self.settings = round_settings(grpo, rule)
        """With the updates of a whole round in a version."""
        self.steps = 0
        """Steps of this round so far."""
        self._optimizer: OuterOptimizer | None = None

    def start(self, masters: Tensors, momentum: Tensors | None = None) -> None:
        """Begin a round from a trainer's rows of the outer weights."""
        self._optimizer = OuterOptimizer(self._rule, self._bound, masters, self._ranks, momentum)
        self.steps = 0

    @property
    def optimizer(self) -> OuterOptimizer:
        """Outer optimiser of the loaded weights."""
        if self._optimizer is None:
            raise RuntimeError("no policy is loaded")
        return self._optimizer

    def check_open(self) -> None:
        """Raise ``RuntimeError`` if the round has all its steps: more would exceed the bound."""
        if self.steps >= self._rule.inner_steps:
            raise RuntimeError(f"the round has its {self.steps} steps")

    def momentum(self) -> dict[str, Tensor]:
        """Return the momentum for a state; raises ``RuntimeError`` inside a round."""
        if self.steps:
            raise RuntimeError("a state is that of a round's beginning")
        return self.optimizer.momentum

    def checked_momentum(self, state: TrainingState) -> dict[str, Tensor]:
        """Return this rank's rows; ``ValueError`` for what no bounded differences produce."""
        rows = {name: self._ranks.rows(one) for name, one in (state.outer_momentum or {}).items()}
        tolerance = _MOMENTUM_TOLERANCE / (1 - self._rule.momentum)

        def check() -> None:
            for name, momentum in rows.items():
                limits = limits_of(self._bound, self._ranks.rows(state.weights[name])) * tolerance
                if not bool((momentum.abs() <= limits).all()):
                    raise ValueError(f"the outer momentum of {name} is inconsistent")

        self._ranks.together(check)
        return {name: one.clone() for name, one in rows.items()}
