"""Models and learners of a run, from weights on the CPU: on one device, or on a group of ranks."""

from collections.abc import Callable, Iterable, Mapping

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

_KEPT_BYTES_MAX = 2**30
"""Activations that a pass may keep before recomputation pays. Recomputing costs a third more
compute and frees memory for more tokens; on a tiny model it frees nothing. A guess."""


class ModelBuilder:
    """Builds what a trainer of one run computes with, on ``device``.

    ``checkpointing``: a decoder layer keeps only its input for the backward pass; None to do so if
    the activations of ``pass_tokens`` would be too large. Raises ``ValueError`` for a dithered
    model without a run id.
    """

    def __init__(
        self,
        section: ModelSection,
        config: Config,
        sampling: SamplingSection,
        grpo: GrpoSection,
        run: RunId | None,
        *,
        pass_tokens: int,
        checkpointing: bool | None,
        device: str,
        ranks: Ranks,
    ) -> None:
        self._section, self._config, self._grpo = section, config, grpo
        self._dtype = DTYPES[section.dtype]
        self._round = rounding_of(section, run)
        self._temperature = sampling.temperature * scales_of(config).logits
        pays = pass_tokens * _kept_bytes_per_token(config) > _KEPT_BYTES_MAX
        self.checkpointing = pays if checkpointing is None else checkpointing
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
        if self.checkpointing:
            model.keep_inputs_only()
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


def _kept_bytes_per_token(config: Config) -> int:
    """Return the bytes that autograd keeps per token in the decoder, in float32.

    Measured where all heads together are as wide as the hidden states; otherwise a guess.
    """
    heads = config.num_attention_heads * head_size(config)
    layer = 6 * (config.hidden_size + heads) + 4 * config.intermediate_size
    return 4 * config.num_hidden_layers * layer
