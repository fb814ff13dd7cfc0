"""Learner: a model, its float32 master weights, and the optimiser that moves them.

Where the model computes with rounded weights, gradients are added up on the masters, as if these
had been used in the computation. In a group of ranks, masters, gradients and moments are the rows
of this rank.
"""

import math
from collections.abc import Collection, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from protocol.run.recipe import GrpoSection
from roles.engines.architectures.model import tensors_of
from roles.engines.training.optimiser import adamw_of
from roles.engines.training.packed_model import PackedModel
from roles.engines.training.ranks import Ranks
from roles.engines.training.rounding import PolicyRounding


class Learner:
    """Master weights of a model, their gradients and AdamW.

    ``apart`` are the names of the masters that the model has rounded copies of; the others are its
    own parameters.
    """

    def __init__(
        self,
        model: PackedModel,
        masters: Mapping[str, Parameter],
        apart: Collection[str],
        rounded: PolicyRounding,
        grpo: GrpoSection,
        ranks: Ranks,
    ) -> None:
        self.model = model
        self.masters = masters
        self.optimizer = adamw_of(grpo, masters.values())
        self._apart = frozenset(apart)
        self._round = rounded
        self._ranks = ranks
        if ranks.count == 1:
            for name, parameter in self._copies():
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(_hand_over, masters[name])
                )

    def rows(self) -> dict[str, Tensor]:
        """Return this rank's rows of the model's weights; rounded, they are the policy's."""
        return {name: local(tensor) for name, tensor in tensors_of(self.model.causal).items()}

    def forget_gradients(self) -> None:
        """Drop all gradients."""
        self.model.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)

    def take_gradients(self) -> None:
        """Give the masters of a group's rank the gradients that the passes of all ranks left."""
        if self._ranks.count > 1:
            for name, parameter in self.model.causal.named_parameters():
                if parameter.grad is not None:
                    self.masters[name].grad = local(parameter.grad)

    def gradient_norm(self) -> Tensor:
        """Return the norm of the gradient over all ranks, a scalar."""
        own = get_total_norm([p.grad for p in self.masters.values() if p.grad is not None])
        if self._ranks.count == 1:
            return own
        (squares,) = self._ranks.totals([float(own.double().square())])
        return own.new_tensor(squares**0.5)

    @torch.no_grad()
    def update(self, norm: Tensor, norm_max: float, rate: float) -> None:
        """Clip the gradient of norm ``norm``, step the masters, and round them for the model."""
        clip_grads_with_norm_(list(self.masters.values()), norm_max, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self._round_copies()

    @torch.no_grad()
    def replace(self, rows: Mapping[str, Tensor]) -> None:
        """Replace the masters, and what the model computes with; the moments stay."""
        for name, master in self.masters.items():
            master.copy_(rows[name])
        self._round_copies()

    def _round_copies(self) -> None:
        for name, parameter in self._copies():
            begin = self._ranks.first_row(parameter.shape) * math.prod(parameter.shape[1:])
            local(parameter).copy_(self._round(name, self.masters[name], begin))

    def _copies(self) -> list[tuple[str, Parameter]]:
        named = self.model.causal.named_parameters()
        return [(name, parameter) for name, parameter in named if name in self._apart]


def _hand_over(master: Parameter, parameter: Parameter) -> None:
    """Add the gradient of a rounded parameter to that of its float32 master, and drop it."""
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad.add_(parameter.grad)
    parameter.grad = None


def local(tensor: Tensor) -> Tensor:
    """Return this rank's rows; a view without gradient."""
    own = tensor.detach()
    return own.to_local() if isinstance(own, DTensor) else own
