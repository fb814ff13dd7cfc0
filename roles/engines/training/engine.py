"""Training engine: one model and one AdamW, trained on batches of verified sequences."""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from protocol.core.types import Digest, RunId
from protocol.run.recipe import GrpoSection, ModelSection, SamplingSection
from roles.engines.architectures.architecture import CausalLM, Config, head_size, scales_of
from roles.engines.architectures.model import tensors_of
from roles.engines.builtin.batching import decode
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.engine import (
    BuiltinEngine,
    computed,
    computed_telling,
    give_back_memory,
    guarded,
    prepare_thread,
)
from roles.engines.builtin.head import Head
from roles.engines.files.policy import digest_of, write_policy
from roles.engines.training.attention import PACKED
from roles.engines.training.batch import Pass, TrainingSample, collate, minibatches, pack, select
from roles.engines.training.checkpoint import (
    TrainingState,
    check_moments,
    checkpoint_bytes_max,
    load_checkpoint,
    save_checkpoint,
)
from roles.engines.training.head import target_logprobs
from roles.engines.training.losses import token_weights, weighted_loss
from roles.engines.training.mismatch import ClaimComparison
from roles.engines.training.optimiser import adamw_of, learning_rate, moments_of
from roles.engines.training.rounding import rounding_of
from roles.ports.engines import Policy, StepMetrics, TrainingEngine, TrainingSequence
from roles.ports.storage import StorageFullError

_keeping_inputs = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Activation checkpointing: keep only the arguments; no such function draws random numbers."""

_KEPT_BYTES_MAX = 2**30
"""Activations that a pass may keep before recomputation pays. Recomputing costs a third more
compute and frees memory for more tokens; on a tiny model it frees nothing. A guess."""

T = TypeVar("T")


@dataclass(slots=True)
class _Sums:
    """Totals over the tokens of one update."""

    tokens: int
    compared: ClaimComparison = field(default_factory=ClaimComparison)
    loss: float = 0.0
    """Of the update; the other sums are over its tokens."""
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    norm: float = 0.0
    """Gradient norm before clipping."""
    updated: bool = False
    learning_rate: float = 0.0


@dataclass(slots=True)
class _Step:
    """A step whose first gradient is computed: its totals so far, and the remaining minibatches."""

    first: _Sums | None
    """None when the batch has nothing to learn from."""
    parts: list[list[TrainingSample]]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Model and optimizer; ``masters`` are the model's own parameters for float32 policies.

    Gradients are those of the masters.
    """

    model: CausalLM
    masters: dict[str, Parameter]
    optimizer: torch.optim.AdamW


class TorchTrainingEngine(BuiltinEngine, TrainingEngine):
    """Train on a CPU or one GPU by the loss of the run (``protocol.run.loss``).

    Master weights, their gradients and the optimizer are float32. The model computes with the
    policy's weights, in their precision and as validators do, so a ratio is 1 before the first
    update. Where these are rounded, separate masters add up the gradients of all passes in float32,
    as if they had been used in the computation. Sequences are packed into passes of
    ``pass_tokens``. With ``checkpointing`` a decoder layer keeps only its input and is recomputed
    in the backward pass (None: only if the activations would be too large). Neither changes the
    result beyond rounding. Files are written in another thread while a step computes its first
    gradient.
    """

    def __init__(
        self,
        model: ModelSection,
        sampling: SamplingSection,
        grpo: GrpoSection,
        *,
        run: RunId | None = None,
        pass_tokens: int = 16_384,
        checkpointing: bool | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(model, model.dtype, device)
        self._head_precision = model.head
        self._round = rounding_of(model, run)
        self._temperature = sampling.temperature * scales_of(self._config).logits
        self._grpo, self._loss = grpo, grpo.loss
        answers = grpo.rollouts_per_step * sampling.prompts_per_rollout * sampling.group_size
        self._constant = answers * sampling.tokens_max / grpo.updates_per_version
        self._ends = model.end_tokens if grpo.loss.mask_truncated else ()
        self._pass_tokens = pass_tokens
        kept_bytes = pass_tokens * _kept_bytes_per_token(self._config)
        pays = kept_bytes > _KEPT_BYTES_MAX
        self._checkpointing = pays if checkpointing is None else checkpointing
        self._steps = 0
        """Updates of the optimiser."""
        self._version = 0
        self._held: _Loaded | None = None
        self._step: _Step | None = None
        self._writer = ThreadPoolExecutor(1, "writer", prepare_thread)

    @override
    def close(self) -> None:
        super().close()
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def _written(self, method: "Callable[[TorchTrainingEngine, Path], T]", path: Path) -> T:
        within = guarded(method, StorageFullError)
        return await asyncio.wrap_future(self._writer.submit(within, self, path))

    @override
    async def state_bytes_max(self) -> int:
        return checkpoint_bytes_max(self._shapes)

    def _packing_model(self, tensors: dict[str, Tensor]) -> CausalLM:
        """Return a model with a policy's weights, in its precision.

        Embedding and output layer have the same values in float32: an embedding's gradient in bf16
        would lose the tokens that occur often, and the output layer multiplies in float32.
        """
        model = self._model_of(tensors, self._dtype)
        for module in (model.model.embed_tokens, model.lm_head):
            module.float()
        model.set_attn_implementation(PACKED)
        return model

    def _policy_of(self, masters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Round master weights of any precision to the policy's weights."""
        return {name: self._round(name, tensor.float()) for name, tensor in masters.items()}

    def _adopt(self, tensors: dict[str, Tensor]) -> _Loaded:
        """Make a model and an optimizer; ``tensors`` become the master weights."""
        model = self._packing_model(self._policy_of(tensors))
        if self._checkpointing:
            for layer in model.model.layers:
                layer.forward = partial(_keeping_inputs, layer.forward)
        masters = dict(model.named_parameters())
        if self._dtype != torch.float32:
            masters = {
                name: Parameter(tensor.to(self._device, torch.float32, copy=True))
                for name, tensor in tensors.items()
            }
            for name, parameter in model.named_parameters():
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(_hand_over, masters[name])
                )
        return _Loaded(model, masters, adamw_of(self._grpo, masters.values()))

    def _loaded(self) -> _Loaded:
        if self._held is None:
            raise RuntimeError("no policy is loaded")
        return self._held

    @override
    @computed_telling(ValueError)
    def load_policy(self, policy: Policy) -> None:
        self._held = self._adopt(self._read(policy))
        self._steps, self._version, self._step = 0, int(policy.version), None

    @override
    @computed_telling(ValueError)
    def recompute(
        self, policy: Policy, sequences: Sequence[TrainingSequence]
    ) -> list[TrainingSequence]:
        self._forget_gradients()  # frees memory for these weights
        model = self._packing_model(self._read(policy))
        found = list(sequences)
        for sample, known in self._logprobs(model, self._selected(sequences)):
            found[sample.place] = replace(
                sequences[sample.place], logprobs=known, claimed=sample.logprobs
            )
        del model
        give_back_memory()
        return found

    def _selected(self, sequences: Sequence[TrainingSequence]) -> list[TrainingSample]:
        divide = self._loss.advantage == "group"
        return select(sequences, divide=divide, ends=self._ends)

    @torch.no_grad()
    def _logprobs(
        self, model: CausalLM, samples: Sequence[TrainingSample]
    ) -> list[tuple[TrainingSample, tuple[float, ...]]]:
        """Return samples with the log-probabilities of their tokens, in the order of packing."""
        found = []
        for packed in pack(samples, self._pass_tokens):
            logprobs, _ = self._target_logprobs(model, collate(packed, self._device))
            own = iter(logprobs.tolist())
            found += [(sample, tuple(islice(own, len(sample.tokens)))) for sample in packed]
        return found

    @override
    @computed
    def begin_step(self, batch: Sequence[TrainingSequence]) -> None:
        parts = minibatches(self._selected(batch), self._grpo.updates_per_version)
        with self._whole_or_unloaded():
            if self._loss.importance_cap is not None:
                parts[1:] = [self._with_old_logprobs(part) for part in parts[1:]]
            self._step = _Step(self._gradient(parts[0]) if parts else None, parts)

    def _with_old_logprobs(self, samples: list[TrainingSample]) -> list[TrainingSample]:
        """Add the log-probabilities before the first update; its own minibatch needs none."""
        known = self._logprobs(self._loaded().model, samples)
        return [replace(sample, old_logprobs=logprobs) for sample, logprobs in known]

    @override
    @computed
    def end_step(self) -> StepMetrics:
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("no step has begun")
        done: list[_Sums] = []
        with self._whole_or_unloaded():
            for number, part in enumerate(step.parts):
                sums = step.first if step.first is not None and not number else self._gradient(part)
                self._update(sums, number)
                done.append(sums)
        self._version = min(self._version + 1, self._grpo.steps)
        give_back_memory()
        first = (None, None) if step.first is None else step.first.compared.result(self._loss)
        tokens = max(1, sum(sums.tokens for sums in done))
        return StepMetrics(
            updates=sum(sums.updated for sums in done),
            loss=sum(sums.loss * sums.tokens for sums in done) / tokens,
            gradient_norm=max((sums.norm for sums in done), default=0.0),
            entropy=sum(sums.entropy for sums in done) / tokens,
            sequences_used=sum(map(len, step.parts)),
            clip_low_fraction=sum(sums.clipped_low for sums in done) / tokens,
            clip_high_fraction=sum(sums.clipped_high for sums in done) / tokens,
            kl=sum(sums.kl for sums in done) / tokens,
            learning_rate=max((sums.learning_rate for sums in done), default=0.0),
            mismatch=first[0],
            engine_mismatch=first[1],
        )

    @contextmanager
    def _whole_or_unloaded(self) -> Iterator[None]:
        """Unload on an error: weights may be half updated, and the next load needs the memory."""
        try:
            yield
        except BaseException:
            self._held = None
            raise

    def _forget_gradients(self) -> None:
        loaded = self._loaded()
        loaded.model.zero_grad(set_to_none=True)
        loaded.optimizer.zero_grad(set_to_none=True)
        self._step = None

    def _gradient(self, samples: Sequence[TrainingSample]) -> _Sums:
        self._forget_gradients()
        model = self._loaded().model
        lengths = [len(sample.tokens) for sample in samples]
        weights = token_weights(self._loss.aggregation, lengths, self._constant)
        weighted = [replace(one, weight=own) for one, own in zip(samples, weights, strict=True)]
        sums = _Sums(sum(lengths))
        for members in pack(weighted, self._pass_tokens):
            packed = collate(members, self._device)
            self._accumulate(model, packed, sums)
            assert packed.own_logprobs is not None
            sums.compared.add(members, packed.own_logprobs)
        return sums

    def _accumulate(self, model: CausalLM, packed: Pass, sums: _Sums) -> None:
        """Add the gradient of a pass: its tokens have their weights in the whole update."""
        logprobs, entropies = self._target_logprobs(model, packed)
        loss, found = weighted_loss(self._loss, packed, logprobs, entropies)
        torch.autograd.backward(loss)
        sums.loss += float(loss.detach())
        clipped, log_ratios = found.clipped, found.log_ratios
        sums.clipped_low += float((clipped & (log_ratios < 0)).sum())
        sums.clipped_high += float((clipped & (log_ratios > 0)).sum())
        moved = (logprobs - packed.behaviour_logprobs).detach()
        sums.kl += float((moved.expm1() - moved).sum())
        sums.entropy += float(entropies.detach().sum())

    def _target_logprobs(self, model: CausalLM, packed: Pass) -> tuple[Tensor, Tensor]:
        """Return each target's log-probability and the entropy at its position, ``[n]``."""
        logprobs, entropies = target_logprobs(
            self._states(model, packed),
            model.lm_head.weight,
            packed.targets,
            self._temperature,
            head=self._head_of(model),
            entropy_gradient=self._loss.entropy_coefficient != 0,
        )
        packed.own_logprobs = logprobs.detach()
        return logprobs, entropies

    def _head_of(self, model: CausalLM) -> Head | None:
        """Return the output layer of validators; None for float32 policies.

        There the logits of one product differ from theirs by rounding of float32 alone.
        """
        if self._dtype == torch.float32:
            return None
        weight = model.lm_head.weight
        return Head(weight.to(self._dtype) if self._head_precision == "model" else weight, "model")

    def _states(self, model: CausalLM, packed: Pass) -> Tensor:
        """Return the decoder's output ``[n, hidden]`` at the predicting positions."""
        states: Tensor = model.model(
            inputs_embeds=model.model.embed_tokens(packed.tokens).to(self._dtype),
            position_ids=packed.positions,
            runs=packed.runs,
            use_cache=False,
        ).last_hidden_state
        return states[0, packed.predictors]

    def _update(self, sums: _Sums, number: int) -> None:
        """Step the optimizer if everything is finite; record the gradient norm before clipping.

        ``number``: that of the update in its step, from 0.
        """
        loaded = self._loaded()
        parameters = list(loaded.masters.values())
        total = get_total_norm([p.grad for p in parameters if p.grad is not None])
        sums.norm = float(total)
        sums.updated = math.isfinite(sums.norm) and math.isfinite(sums.loss)
        if sums.updated:
            clip_grads_with_norm_(parameters, self._grpo.gradient_clip, total)
            run_updates = self._version * self._grpo.updates_per_version + number
            for group in loaded.optimizer.param_groups:
                group["lr"] = learning_rate(self._grpo, self._steps, run_updates)
                sums.learning_rate = group["lr"]
            self._move(loaded)
            self._steps += 1

    @torch.no_grad()
    def _move(self, loaded: _Loaded) -> None:
        """Step the masters by their gradients, then round them to the model's weights."""
        loaded.optimizer.step()
        for name, parameter in loaded.model.named_parameters():
            master = loaded.masters[name]
            if parameter is not master:
                parameter.copy_(self._round(name, master))

    @override
    @computed
    def policy_digest(self) -> Digest:
        return digest_of(tensors_of(self._loaded().model), self._dtype)

    @override
    async def write_policy(self, path: Path) -> Digest:
        return await self._written(TorchTrainingEngine._write_policy, path)

    def _write_policy(self, path: Path) -> Digest:
        return write_policy(tensors_of(self._loaded().model), path, self._dtype)

    @override
    async def save_state(self, path: Path) -> None:
        await self._written(TorchTrainingEngine._save_state, path)

    def _save_state(self, path: Path) -> None:
        loaded = self._loaded()
        state = TrainingState(
            weights={name: master.detach() for name, master in loaded.masters.items()},
            first_moments=moments_of(loaded.optimizer, loaded.masters, "exp_avg"),
            second_moments=moments_of(loaded.optimizer, loaded.masters, "exp_avg_sq"),
            steps=self._steps,
            version=self._version,
        )
        save_checkpoint(state, path)

    @override
    @computed_telling(ValueError)
    def load_state(self, path: Path, policy: Digest, newer: Policy | None = None) -> None:
        state = load_checkpoint(path, self._shapes)
        updates = self._grpo.updates_per_version
        if not 0 <= state.steps <= state.version * updates <= self._grpo.steps * updates:
            claim = f"{state.steps} steps for version {state.version}"
            raise ValueError(f"{path} claims {claim}, more than the run has")
        if digest_of(self._policy_of(state.weights)) != policy:
            raise ValueError(f"{path} does not hold the weights of policy {policy.hex()}")
        check_moments(state, self._grpo.adam_betas)
        loaded = self._adopt(state.weights if newer is None else self._read(newer))
        for name, master in loaded.masters.items():
            loaded.optimizer.state[master] = {
                "step": torch.tensor(float(state.steps)),
                "exp_avg": state.first_moments[name].to(self._device),
                "exp_avg_sq": state.second_moments[name].to(self._device),
            }
        self._held, self._steps, self._step = loaded, state.steps, None
        self._version = state.version if newer is None else int(newer.version)

    @override
    @computed
    def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        if not prompts:
            return []
        # In the policies' precision: the report is about the model that workers run.
        decoder = Decoder(
            self._config,
            {name: one.to(self._dtype) for name, one in tensors_of(self._loaded().model).items()},
            self._dtype,
            self._device,
            self._head_precision,
        )
        decoded = decode(decoder, prompts, [tokens_max] * len(prompts), 1.0, lambda *_: None)
        return [tuple(row.tokens.tolist()) for row in decoded]


def _hand_over(master: Parameter, parameter: Parameter) -> None:
    """Add the gradient of a rounded parameter to that of its float32 master, and drop it."""
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad.add_(parameter.grad)
    parameter.grad = None


def _kept_bytes_per_token(config: Config) -> int:
    """Return the bytes that autograd keeps per token in the decoder, in float32.

    Measured where all heads together are as wide as the hidden states; otherwise a guess.
    """
    heads = config.num_attention_heads * head_size(config)
    layer = 6 * (config.hidden_size + heads) + 4 * config.intermediate_size
    return 4 * config.num_hidden_layers * layer
