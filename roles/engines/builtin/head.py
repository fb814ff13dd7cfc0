"""Output layer and sampling from it, shared by workers and validators.

A log-probability is that of the log-softmax of logits / temperature over the whole vocabulary;
Granite also divides the logits by a constant. The manifest's ``model.head`` defines the precision,
because honest engines that round differently disagree: from bf16 states, logits of a bf16 product
are 0.06 apart where they are near 16.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from roles.engines.sampling.gumbel_noise import Draws
from roles.engines.sampling.sampling import Sampled, blocks, sample_blocks, sample_whole

HeadPrecision = Literal["fp32", "model"]


class Head:
    """The unembedding ``[vocabulary, hidden]`` in the precision of its products.

    Makes one float32 copy if the weights have another precision. The logits are the products
    divided by ``scaling``.
    """

    def __init__(self, unembedding: Tensor, precision: HeadPrecision, scaling: float = 1.0) -> None:
        weight = unembedding.detach()
        self.weight = weight.float() if precision == "fp32" else weight
        self._scaling = scaling

    def sample(
        self, states: Tensor, temperature: float, draws: Draws | None, claimed: Tensor | None = None
    ) -> Sampled:
        """Draw the tokens that follow ``states[n, hidden]``; evaluate the claimed ones."""
        states = states.to(self.weight.dtype)

        def logits(block: slice) -> Tensor:
            return self._logits(states, block, temperature)

        vocabulary = len(self.weight)
        if states.device.type == "cpu":
            return sample_blocks(logits, len(states), vocabulary, draws, claimed)
        return sample_whole(logits(slice(0, vocabulary)), draws, claimed)

    def logits(self, states: Tensor, temperature: float) -> Tensor:
        """Return the logits over temperature ``[n, vocabulary]``, bit for bit those of ``sample``.

        Their ``log_totals`` are the normalisers of its log-probabilities.
        """
        states = states.to(self.weight.dtype)
        if states.device.type != "cpu":
            return self._logits(states, slice(None), temperature)
        logits = torch.empty(len(states), len(self.weight))
        for block in blocks(len(self.weight)):
            logits[:, block] = self._logits(states, block, temperature)
        return logits

    def _logits(self, states: Tensor, block: slice, temperature: float) -> Tensor:
        return _product(states, self.weight[block]).float().div_(self._scaling * temperature)


def _product(states: Tensor, weight: Tensor) -> Tensor:
    """Return ``states @ weight.T``.

    On a CPU torch runs float32 in MKL, which is half as fast as oneDNN on AMD: 1.1 and 0.6 ms a
    token for 64 tokens (measured). It runs bf16 in oneDNN already.
    """
    on_cpu = states.device.type == "cpu" and states.dtype == torch.float32
    if on_cpu and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        product: Tensor = torch.ops.aten.mkldnn_linear(states.to_mkldnn(), weight).to_dense()
        return product
    return linear(states, weight)
