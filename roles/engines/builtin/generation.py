"""Built-in generation engine: Hugging Face weights, own decode loop, replayable sampling."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from typing_extensions import override

from protocol.core.types import Digest
from protocol.run.recipe import ModelSection, ToplocSection
from protocol.shardcast.encodings.tensor_file import EncodingError
from protocol.toploc.proof import States, build_proofs_batch
from roles.engines.builtin.batching import Continuation, DecodeBatch, Lengths
from roles.engines.builtin.cache import cache_bytes
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.engine import (
    BuiltinEngine,
    computed_telling,
    guarded,
    prepare_thread,
)
from roles.engines.builtin.patching import PatchedWeights
from roles.engines.files.safetensors import read_layout
from roles.engines.sampling.gumbel_noise import NoiseSource
from roles.ports.engines import (
    EngineError,
    FirstToken,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
)
from roles.runtime.metrics import FirstTokenWatch
from roles.runtime.shared_lock import SharedLock

STEPS_PER_LOOK = {"cpu": 1}
STEPS_PER_LOOK_ELSEWHERE = 16
"""Decode steps between two reads of the results on a GPU; each read waits for the device. Steps
after an end token are wasted, half of this number per sequence on average. A guess."""

STEPS_PER_PROOF = 256
"""Steps after which proofs of complete chunks are built and their states dropped."""


@dataclass(eq=False, slots=True)
class SampledSequence:
    """A sequence of a call, with the proofs built so far."""

    sequence: Continuation
    logprobs: list[float] = field(default_factory=list)
    proofs: list[bytes] = field(default_factory=list)

    def made(self) -> Generation:
        """Return the result for the caller."""
        return Generation(tuple(self.sequence.tokens), tuple(self.logprobs), tuple(self.proofs))


@dataclass(eq=False, slots=True)
class _GenerationCall:
    """One pending call of ``generate``."""

    sampled: list[SampledSequence]
    temperature: float
    done: "Future[list[Generation]]" = field(default_factory=Future)

    @property
    def sequences(self) -> list[Continuation]:
        return [one.sequence for one in self.sampled]


class TransformersGenerationEngine(BuiltinEngine, GenerationEngine):
    """Generate on a CPU or one GPU, computing in the precision of the proofs.

    Decodes at most ``batch_sequences_max`` sequences together, in caches of at most
    ``cache_bytes_max`` (default: from the device's free memory).
    """

    def __init__(
        self,
        model: ModelSection,
        toploc: ToplocSection,
        *,
        device: str = "cpu",
        batch_sequences_max: int = 256,
        cache_bytes_max: int | None = None,
    ) -> None:
        super().__init__(model, toploc.precision, device)
        self._noise = NoiseSource(self._config.vocab_size, device)
        self._head_precision = model.head
        self._toploc = toploc
        self._batch_sequences_max = batch_sequences_max
        self._cache_bytes_max = cache_bytes_max
        self._cache_bytes = 0
        self._decoder: Decoder | None = None
        self._weights: PatchedWeights | None = None
        """Patchable weights of the decoder; None if its file's layout cannot be patched."""
        self._weights_lock = threading.Lock()
        self._stager = ThreadPoolExecutor(1, "stage", prepare_thread)
        self._lengths = Lengths()
        self._turns = SharedLock()
        self._arrived: deque[_GenerationCall] = deque()
        self._calls: list[_GenerationCall] = []
        """Calls in progress, in order; used only in the engine's thread."""
        self._tokens_sampled = 0
        self._first_token = FirstTokenWatch()

    @property
    @override
    def tokens_sampled(self) -> int:
        return self._tokens_sampled

    @property
    @override
    def first_token(self) -> FirstToken | None:
        return self._first_token.found

    @override
    def close(self) -> None:
        super().close()
        self._stager.shutdown(wait=False, cancel_futures=True)

    @override
    async def stage(self, policy: Policy) -> bool:
        return await asyncio.wrap_future(self._stager.submit(self._stage, policy))

    @guarded
    def _stage(self, policy: Policy) -> bool:
        with self._weights_lock:
            if self._weights is None:
                return False
            self._weights.stage(policy)
            return self._weights.has_staged(policy.digest)

    @override
    async def load(self, policy: Policy) -> None:
        async with self._turns.alone():
            await self._load(policy)
            self._first_token.loaded(policy.version, asyncio.get_running_loop().time)

    @computed_telling(ValueError)
    def _load(self, policy: Policy) -> None:
        with self._weights_lock:
            if self._weights is not None and self._weights.has_staged(policy.digest):
                self._swap(self._weights, policy.digest)
            else:
                decoder = self._made(policy)
                self._weights = weights_of(decoder, policy)
                self._decoder = decoder
                self._cache_bytes = self._cache_bytes_max or cache_bytes(self._device)

    def _swap(self, weights: PatchedWeights, policy: Digest) -> None:
        decoder = self._decoder
        self._decoder = self._weights = None  # until all is written
        weights.swap(policy)
        self._decoder, self._weights = decoder, weights

    def _made(self, policy: Policy) -> Decoder:
        """Return a decoder with a policy; raises ``ValueError`` as ``load``."""
        return Decoder(
            self._config, self._read(policy), self._dtype, self._device, self._head_precision
        )

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        check_requests(requests, temperature)
        sampled = [
            SampledSequence(Continuation(one.prompt, one.seed, one.tokens_max)) for one in requests
        ]
        call = _GenerationCall(sampled, temperature)
        async with self._turns.together():
            self._arrived.append(call)
            # A running computation takes the call in; otherwise this submission starts one.
            self._executor.submit(self._run)
            return await asyncio.wrap_future(call.done)

    def _run(self) -> None:
        try:
            self._compute_calls()
        except EngineError as error:
            calls, self._calls = self._calls, []
            for call in calls:
                if call.done.set_running_or_notify_cancel():
                    call.done.set_exception(EngineError(str(error), error.trace))

    @guarded
    def _compute_calls(self) -> None:
        """Compute until no call is left, including calls that arrive meanwhile."""
        batch: DecodeBatch | None = None
        while self._arrived or self._calls:
            arrived = self._arrivals()
            self._calls += arrived
            if self._decoder is None:
                raise RuntimeError("no policy is loaded")
            if batch is None:
                batch = self._batch_of(self._decoder)
            for call in arrived:
                batch.add(call.sequences)
            for call in [one for one in self._calls if one.done.cancelled()]:
                batch.drop(call.sequences)
                self._calls.remove(call)
            if len(batch):
                self._tokens_sampled += batch.advance(self._calls[0].temperature)
                self._first_token.sampled()
            self._deliver(batch)

    def _arrivals(self) -> list[_GenerationCall]:
        """Take the queued calls that can run now: all have one temperature."""
        taken: list[_GenerationCall] = []
        while self._arrived:
            first = (self._calls or taken or [self._arrived[0]])[0]
            if self._arrived[0].temperature != first.temperature:
                break
            taken.append(self._arrived.popleft())
        return taken

    def _batch_of(self, decoder: Decoder) -> DecodeBatch:
        return DecodeBatch(
            decoder,
            self._noise.at,
            self._lengths,
            cache_bytes_max=self._cache_bytes,
            rows_max=self._batch_sequences_max,
            steps=STEPS_PER_LOOK.get(self._device, STEPS_PER_LOOK_ELSEWHERE),
        )

    def _deliver(self, batch: DecodeBatch) -> None:
        """Return the results of complete calls."""
        complete = [call for call in self._calls if all(one.ended for one in call.sequences)]
        if complete or batch.uncollected_steps >= STEPS_PER_PROOF:
            batch.collect()
            self._prove(one for call in self._calls for one in call.sampled)
        for call in complete:
            self._calls.remove(call)
            if call.done.set_running_or_notify_cancel():
                call.done.set_result([one.made() for one in call.sampled])

    def _prove(self, sampled: Iterable[SampledSequence]) -> None:
        """Prove complete chunks of the collected states, and all states of ended sequences."""
        chunk_tokens, own, states = self._toploc.chunk_tokens, [], []
        for one in sampled:
            if not one.sequence.parts:
                continue
            logprobs, kept = one.sequence.take()
            whole = len(kept) if one.sequence.ended else len(kept) // chunk_tokens * chunk_tokens
            if whole < len(kept):
                one.sequence.parts.append((logprobs[whole:].clone(), kept[whole:].clone()))
            if whole:
                one.logprobs += logprobs[:whole].tolist()
                own.append(one)
                states.append(as_states(kept[:whole]))
        proofs = build_proofs_batch(states, chunk_tokens=chunk_tokens, top_k=self._toploc.top_k)
        for one, made in zip(own, proofs, strict=True):
            one.proofs += made


def weights_of(decoder: Decoder, policy: Policy) -> PatchedWeights | None:
    """Return the weights of a decoder made from a policy; None if no patch can apply to it.

    Files of one policy may differ in tensor order, so call this while the loaded file is in place.
    """
    try:
        return PatchedWeights(policy.digest, read_layout(policy.path), decoder.places())
    except (OSError, EncodingError):
        return None


def check_requests(requests: Sequence[GenerationRequest], temperature: float) -> None:
    """Raise the ``ValueError`` that ``GenerationEngine.generate`` documents."""
    for request in requests:
        if not request.prompt or request.tokens_max < 1:
            raise ValueError("a request needs a prompt and at least one token to emit")
    if not temperature > 0:
        raise ValueError("the temperature must be positive")


def as_states(states: torch.Tensor) -> States:
    """Return states on the CPU in the form that ``protocol.toploc`` takes."""
    if states.dtype == torch.bfloat16:
        bits: States = states.contiguous().view(torch.uint16).numpy()
        return bits
    floats: States = states.float().contiguous().numpy()
    return floats
