"""The output layer, and the tokens that are drawn from it: the same for workers and validators.

A log-probability is that of the log-softmax of logits / temperature over the whole vocabulary;
Granite's logits are divided by a constant of the model, too. It
is defined by the manifest's ``model.head``, because two honest engines differ by what they round:
from bf16 states the logits of a bf16 product are 0.06 apart where they are near 16.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from roles.engines.sampling.gumbel_noise import Draws
from roles.engines.sampling.sampling import Sampled, sample_blocks, sample_whole

HeadPrecision = Literal["fp32", "model"]


class Head:
    """The unembedding ``[vocabulary, hidden]`` in the precision of its products.

    A float32 copy is made here, once, and only of weights in another precision. The logits are the
    products divided by ``scaling``.
    """

    def __init__(self, unembedding: Tensor, precision: HeadPrecision, scaling: float = 1.0) -> None:
        weight = unembedding.detach()
        self.weight = weight.float() if precision == "fp32" else weight
        self._scaling = scaling

    def sample(
        self, states: Tensor, temperature: float, draws: Draws | None, claimed: Tensor | None = None
    ) -> Sampled:
        """Draw the tokens that follow ``states[n, hidden]``; judge the claimed ones."""
        states = states.to(self.weight.dtype)

        def logits(block: slice) -> Tensor:
            return _product(states, self.weight[block]).float().div_(self._scaling * temperature)

        vocabulary = len(self.weight)
        if states.device.type == "cpu":
            return sample_blocks(logits, len(states), vocabulary, draws, claimed)
        return sample_whole(logits(slice(0, vocabulary)), draws, claimed)


def _product(states: Tensor, weight: Tensor) -> Tensor:
    """Return ``states @ weight.T``.

    torch gives float32 on a CPU to MKL, which runs AMD's at half of what oneDNN gets from them
    (measured: 1.1 and 0.6 ms a token for 64 of them); bf16 it gives to oneDNN by itself.
    """
    on_cpu = states.device.type == "cpu" and states.dtype == torch.float32
    if on_cpu and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        product: Tensor = torch.ops.aten.mkldnn_linear(states.to_mkldnn(), weight).to_dense()
        return product
    return linear(states, weight)
