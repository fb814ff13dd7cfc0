"""What this engine adds to vLLM's workers; vLLM mixes it into their class and calls it by name.

With tensor parallelism every worker has a part of the weights, and all of them draw the same
tokens: the logits and the final states are whole in each.
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
    """Methods of a worker of vLLM; ``model_runner`` is vLLM's."""

    model_runner: Any

    def watch_states(self) -> None:
        """Show the sampling the states from which vLLM computes logits."""
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
        """Have the output layer packed anew.

        vLLM does it with weights that it loads. A tied output layer loads none, and its packed copy
        stays that of the policy before (0.32 on a CPU, measured).
        """
        head = self.model_runner.model.lm_head
        head.quant_method.process_weights_after_loading(head)

    def unembed(self, columns: Sequence[int]) -> Tensor:
        """Return what the output layer computes from unit states, ``[columns, vocabulary]``.

        That is its weights themselves, exactly in every precision: all else is multiplied by zero.
        """
        runner = self.model_runner
        hidden = runner.model_config.get_hidden_size()
        states = torch.zeros(len(columns), hidden, dtype=runner.dtype, device=runner.device)
        states[range(len(columns)), list(columns)] = 1
        with torch.inference_mode():
            logits: Tensor = runner.model.compute_logits(states)
        return logits.cpu()

    def take_records(self, numbers: Sequence[int]) -> list[Record]:
        """Return what was noted of sequences that have ended."""
        return self._sampling().records.take(numbers)

    def _sampling(self) -> ReplayableSampling:
        processors = self.model_runner.input_batch.logitsprocs.non_argmax_invariant
        (own,) = (one for one in processors if isinstance(one, ReplayableSampling))
        return own


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file layer by layer, in which order vLLM needs no room for parts."""
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            yield name, file.get_tensor(name)
