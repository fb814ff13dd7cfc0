"""Models and learners of a run, from weights on the CPU: on one device, or on a group of ranks."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import Parameter

from protocol.core.types import RunId
from protocol.run.recipe import GrpoSection, ModelSection, SamplingSection
from roles.engines.architectures.architecture import CausalLM, Config, head_size, scales_of
from roles.engines.files.policy import DTYPES
from roles.engines.training.learner import Learner, local
from roles.engines.training.packed_model import PackedModel, is_cast, sharded, whole_model
from roles.engines.training.ranks import Ranks
from roles.engines.training.rounding import rounding_of

PASS_TOKENS = 16_384
"""Most tokens of a pass, and those of passes whose layers are recomputed: this takes a third more
compute, and large passes make the most of the memory it frees."""

_FEW_TOKENS = {"cpu": 512, "cuda": 8192}
"""A pass of fewer tokens loses more than it saves by keeping activations. Guesses."""

_KEPT_BYTES_MAX = 2**30
"""Activations that a pass keeps rather than recomputing them, on a CPU. A guess."""

_KEPT_SHARE = 8
"""On a GPU that has more, one part in so many of its memory. A guess: not measured here."""


@dataclass(frozen=True, slots=True)
class PassSizes:
    """Tokens of a pass, and the largest pass that keeps its activations (0: none does)."""

    tokens: int
    kept_tokens_max: int

    @classmethod
    def of(
        cls,
        config: Config,
        dtype: torch.dtype,
        device: str,
        tokens: int | None,
        checkpointing: bool | None,
        ranks: int = 1,
    ) -> Self:
        """Return the sizes for a device; ``tokens`` and ``checkpointing`` override it.

        Passes have as many tokens as keep their activations, unless these are few, or several ranks
        gather the weights for each pass. A longer sequence is a pass alone, which recomputes.
        """
        kept_bytes, kind = _KEPT_BYTES_MAX, torch.device(device).type
        if kind == "cuda":
            memory = torch.cuda.get_device_properties(device).total_memory
            kept_bytes = max(kept_bytes, memory // _KEPT_SHARE)
        fitting = kept_bytes // _kept_bytes_per_token(config, dtype)
        if tokens is None:
            keeps = checkpointing is None and ranks == 1
            keeps &= fitting >= _FEW_TOKENS.get(kind, PASS_TOKENS)
            tokens = min(fitting, PASS_TOKENS) if keeps else PASS_TOKENS
        if checkpointing is None:
            return cls(tokens, fitting)
        return cls(tokens, 0 if checkpointing else sys.maxsize)


class ModelBuilder:
    """Builds what a trainer of one run computes with, on ``device``.

    In passes of more than ``kept_tokens_max`` tokens a decoder layer keeps only its input for the
    backward pass. Raises ``ValueError`` for a dithered model without a run id.
    """

    def __init__(
        self,
        section: ModelSection,
        config: Config,
        sampling: SamplingSection,
        grpo: GrpoSection,
        run: RunId | None,
        *,
        kept_tokens_max: int,
        device: str,
        ranks: Ranks,
    ) -> None:
        self._section, self._config, self._grpo = section, config, grpo
        self._dtype = DTYPES[section.dtype]
        self._round = rounding_of(section, run)
        self._temperature = sampling.temperature * scales_of(config).logits
        self._kept_tokens_max = kept_tokens_max
        self._device, self._ranks = device, ranks

    def policy(self, name: str, master: Tensor) -> Tensor:
        """Round a whole master weight of any precision to the policy's."""
        return self._round(name, master.float(), 0)

    def model(self, policy: Mapping[str, Tensor]) -> PackedModel:
        """Return a model with a policy's weights."""
        return self._model(policy, policy.__getitem__)

    def learner(self, masters: Mapping[str, Tensor]) -> Learner:
        """Return a learner with a fresh optimiser, from master weights of any precision."""
        apart = frozenset(filter(self._is_apart, masters))

        def value(name: str) -> Tensor:
            return self.policy(name, masters[name]) if name in apart else masters[name]

        model = self._model(masters, value)
        model.keep_inputs_only(self._kept_tokens_max)
        own = {}
        for name, parameter in model.causal.named_parameters():
            if name in apart:
                rows = self._ranks.rows(masters[name])
                own[name] = Parameter(rows.to(self._device, torch.float32, copy=True))
            else:
                own[name] = parameter if self._ranks.count == 1 else Parameter(local(parameter))
        return Learner(model, own, apart, self._round, self._grpo, self._ranks)

    def _model(self, names: Iterable[str], value_of: Callable[[str], Tensor]) -> PackedModel:
        if self._ranks.count == 1:
            values = {name: value_of(name) for name in names}
            return self._packed(whole_model(self._config, values, self._dtype, self._device))
        return sharded(
            self._packed,
            self._config,
            lambda name: value_of(name).float(),
            self._dtype,
            self._device,
            self._ranks,
        )

    def _is_apart(self, name: str) -> bool:
        """Return whether the model has another tensor than the master.

        A group's model rounds to nearest by itself, each time that it gathers a layer.
        """
        if self._dtype == torch.float32:
            return False
        rounds_itself = self._ranks.count > 1 and self._section.rounding != "dither"
        return not (rounds_itself and is_cast(name))

    def _packed(self, causal: CausalLM) -> PackedModel:
        return PackedModel(
            causal,
            self._dtype,
            self._section.head,
            self._temperature,
            entropy_gradient=self._grpo.loss.entropy_coefficient != 0,
        )


def _kept_bytes_per_token(config: Config, dtype: torch.dtype) -> int:
    """Return the bytes that autograd keeps per token in a decoder of such parameters.

    Measured where all heads together are as wide as the hidden states; otherwise a guess.
    """
    heads = config.num_attention_heads * head_size(config)
    layer = 6 * (config.hidden_size + heads) + 4 * config.intermediate_size
    return dtype.itemsize * config.num_hidden_layers * layer
