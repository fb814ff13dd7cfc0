"""Check after each weight swap that vLLM computes with the policy's file.

There are two checks, both against tensors whose digest was verified:

* The output layer's weights are read out of vLLM, a few columns of the whole vocabulary, and must
  be **equal** to the file's. This detects a stale output layer in every precision, even one
  optimizer step old: a column has an element of every token.
* A few short sequences are generated and verified as a validator would: against the built-in
  decoder's states for the same file, under the run's own limits. This detects stale layers as well
  as a validator can. It also detects other causes of rejected honest work: another rotary
  embedding, another precision, or a cache of the previous policy.

The second check runs on the CPU, one layer at a time: it needs no GPU memory and shares no kernel
with the code it checks. It reads the weights once.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from protocol.core.rng import Rng
from protocol.rollout.statistics import Extremes, Recomputed, compared_extremes, measured
from protocol.run.recipe import ModelSection, ToplocSection
from protocol.toploc.proof import verify_proofs_batch
from roles.engines.architectures.architecture import Config, scales_of
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.generation import as_states
from roles.engines.files.policy import DTYPES
from roles.engines.sampling.gumbel_noise import NoiseSource
from roles.ports.engines import Generation, GenerationRequest

SEQUENCES = 4
PROMPT_TOKENS = 8
TOKENS = 4
"""Few, because the CPU computes them: some seconds for 7 billion weights."""

TEMPERATURE = 1.0

COLUMNS = 16
"""Columns of the output layer to compare."""


class Probe:
    """Requests sequences and verifies them; the same ones after every swap."""

    def __init__(self, model: ModelSection, toploc: ToplocSection, config: Config) -> None:
        self._head = model.head
        self._toploc = toploc
        self._config = config
        self._noise = NoiseSource(config.vocab_size, "cpu")
        draws = Rng(b"prime-node/vllm/probe")
        self.columns = [draws.below(config.hidden_size) for _ in range(COLUMNS)]
        self.requests = [
            GenerationRequest(
                tuple(draws.below(config.vocab_size) for _ in range(PROMPT_TOKENS)),
                draws.bits64(),
                TOKENS,
            )
            for _ in range(SEQUENCES)
        ]

    def head_fault(self, tensors: Mapping[str, Tensor], unembedded: Tensor) -> str | None:
        """Describe how the weights ``unembedded[columns, vocabulary]`` differ from the policy's."""
        dtype = DTYPES[self._toploc.precision]
        name = "model.embed_tokens.weight"
        own = tensors.get("lm_head.weight", tensors[name])[:, self.columns].to(dtype)
        # vLLM multiplies logits in the head's precision by the reciprocal of Granite's constant.
        own = own.float() if self._head == "fp32" else own
        own = (own * (1 / scales_of(self._config).logits)).float()
        wrong = int((unembedded.float() != own.T).sum())
        return f"{wrong} of {own.numel()} weights of the output layer" if wrong else None

    @torch.inference_mode()
    def fault(self, tensors: Mapping[str, Tensor], made: Sequence[Generation]) -> str | None:
        """Describe what a validator of this policy would reject in ``made``."""
        claims = list(zip(self.requests, made, strict=True))
        decoder = Decoder(
            self._config, tensors, DTYPES[self._toploc.precision], head=self._head, streamed=True
        )
        whole = decoder.states([asked.prompt + one.tokens[:-1] for asked, one in claims])
        states = [own[-len(one.tokens) :] for own, one in zip(whole, made, strict=True)]
        counts = [len(one.tokens) for one in made]
        seeds = np.repeat(np.array([asked.seed for asked, _ in claims], dtype=np.uint64), counts)
        positions = np.concatenate([np.arange(count) for count in counts])
        claimed = torch.tensor([token for one in made for token in one.tokens])
        judged = decoder.head.sample(
            torch.cat(states), TEMPERATURE, self._noise.at(seeds, positions), claimed
        )
        chunks = verify_proofs_batch(
            [as_states(own) for own in states],
            [one.proofs for one in made],
            chunk_tokens=self._toploc.chunk_tokens,
            top_k=self._toploc.top_k,
        )
        logprobs, gaps = judged.logprobs.tolist(), judged.gaps.tolist()
        bounds = pairwise([0, *np.cumsum(counts).tolist()])
        found = [
            measured(
                self._toploc,
                one.logprobs,
                Recomputed(own, logprobs[start:end], gaps[start:end]),
            ).extremes
            for one, own, (start, end) in zip(made, chunks, bounds, strict=True)
        ]
        return self._judged(found)

    def _judged(self, found: Sequence[Extremes]) -> str | None:
        """Return the reason why most sequences fail.

        A single failure is tolerated: prompts of random tokens are unlike any task's.
        """
        outside = [
            [one for one in compared_extremes(self._toploc, extremes) if one.outside]
            for extremes in found
        ]
        wrong = [one for one in outside if one]
        return str(wrong[0][0]) if 2 * len(wrong) > len(found) else None
