"""Extension of vLLM's workers; vLLM mixes it into their class and calls it by name.

With tensor parallelism every worker holds a part of the weights, and all draw the same tokens: each
has the whole logits and final states.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from roles.engines.vllm.records import Record
from roles.engines.vllm.sampling import ReplayableSampling


class PolicyWorker:
    """Methods of a vLLM worker; ``model_runner`` is vLLM's."""

    model_runner: Any

    def watch_states(self) -> None:
        """Pass the states from which vLLM computes logits to the sampling."""
        sampling = self._sampling()

        def show(_module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
            sampling.states = arguments[1]

        self.model_runner.model.logits_processor.register_forward_pre_hook(show)

    def swap_policy(self, path: str) -> None:
        """Replace the weights by those of a policy's file."""
        self._sampling().records.forget()
        self.model_runner.reload_weights(weights_iterator=_tensors(Path(path)))
        self.renew_head()

    def renew_head(self) -> None:
        """Pack the output layer again.

        vLLM does so with weights that it loads. A tied output layer loads none, and its packed copy
        stays that of the previous policy (version 0.32 on a CPU, measured).
        """
        head = self.model_runner.model.lm_head
        head.quant_method.process_weights_after_loading(head)

    def unembed(self, columns: Sequence[int]) -> Tensor:
        """Return the output layer's products with unit states, ``[columns, vocabulary]``.

        These are its weights exactly, in every precision: all other terms are zero.
        """
        runner = self.model_runner
        hidden = runner.model_config.get_hidden_size()
        states = torch.zeros(len(columns), hidden, dtype=runner.dtype, device=runner.device)
        states[range(len(columns)), list(columns)] = 1
        with torch.inference_mode():
            logits: Tensor = runner.model.compute_logits(states)
        return logits.cpu()

    def take_records(self, numbers: Sequence[int]) -> list[Record]:
        """Return the records of ended sequences."""
        return self._sampling().records.take(numbers)

    def _sampling(self) -> ReplayableSampling:
        processors = self.model_runner.input_batch.logitsprocs.non_argmax_invariant
        (own,) = (one for one in processors if isinstance(one, ReplayableSampling))
        return own


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield a file's tensors layer by layer; in this order vLLM buffers no parts."""
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            yield name, file.get_tensor(name)
