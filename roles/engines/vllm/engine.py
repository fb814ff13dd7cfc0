"""Generation engine on vLLM: concurrent calls share one batch; a weight swap waits for them.

vLLM's scheduler batches sequences, so calls do not wait for each other: new sequences join at the
next step, and each call ends with its own last sequence.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override
from vllm.inputs import TokensPrompt

from protocol.run.recipe import ModelSection, ToplocSection
from protocol.toploc.layout import Variant
from protocol.toploc.proof import build_covered_proofs
from roles.engines.builtin.engine import BuiltinEngine, computed, computed_telling
from roles.engines.builtin.generation import check_requests
from roles.engines.vllm.launch import launch
from roles.engines.vllm.probe import TEMPERATURE, Probe
from roles.engines.vllm.records import Record
from roles.engines.vllm.sampling import parameters
from roles.ports.engines import (
    EngineError,
    FirstToken,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
)
from roles.runtime.metrics import FirstTokenWatch

SWAPS_MAX = 2
"""Attempts to load a policy before the engine fails; the second one is the repair."""


@dataclass(eq=False, slots=True)
class _Call:
    """A call of ``generate`` and its results so far; ``made`` is in request order."""

    requests: Sequence[GenerationRequest]
    temperature: float
    made: dict[int, Generation] = field(default_factory=dict)
    answer: "asyncio.Future[list[Generation]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class VllmGenerationEngine(BuiltinEngine, GenerationEngine):
    """Generate with vLLM on a CPU, or on ``gpus`` GPUs by tensor parallelism."""

    def __init__(
        self, model: ModelSection, toploc: ToplocSection, *, device: str = "auto", gpus: int = 1
    ) -> None:
        super().__init__(model, toploc.precision, "cpu")
        self._end_tokens = model.end_tokens
        self._toploc = toploc
        self._probe = Probe(model, toploc, self._config)
        self._llm = self._executor.submit(
            launch, model, toploc, self._config, device, gpus
        ).result()
        self._is_loaded = False
        self._tokens_sampled = 0
        self._first_token = FirstTokenWatch()
        self._numbers = 0
        self._under_way: dict[int, tuple[_Call, int]] = {}
        """Running sequences by number: their call, and their index in it."""
        self._arrived: list[_Call] = []
        self._order = asyncio.Lock()
        """Calls and swaps take effect in order of arrival."""
        self._stepping: asyncio.Task[None] | None = None

    @property
    @override
    def tokens_sampled(self) -> int:
        return self._tokens_sampled

    @property
    @override
    def first_token(self) -> FirstToken | None:
        return self._first_token.found

    @override
    async def stage(self, policy: Policy) -> bool:
        """Stage nothing: vLLM loads weights from files."""
        return False

    @override
    async def load(self, policy: Policy) -> None:
        async with self._order:
            if self._stepping is not None:  # a sequence belongs to one policy
                await asyncio.wait([self._stepping])
            await self._load(policy)
            self._first_token.loaded(policy.version, asyncio.get_running_loop().time)

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        check_requests(requests, temperature)
        room = self._llm.model_config.max_model_len
        if any(len(one.prompt) + one.tokens_max > room for one in requests):
            raise EngineError(f"vLLM has no room for a sequence of more than {room} tokens")
        async with self._order:
            call = _Call(requests, temperature)
            self._arrived.append(call)
            if self._stepping is None or self._stepping.done():
                self._stepping = asyncio.create_task(self._step_until_idle())
        return await call.answer

    async def _step_until_idle(self) -> None:
        """Compute until no sequence is left, including those of cancelled calls."""
        while self._arrived or self._under_way:
            arrived, self._arrived = self._arrived, []
            try:
                ended = await self._step(arrived)
            except EngineError as error:
                ended = []
                for call in {id(call): call for call, _ in self._under_way.values()}.values():
                    _fail(call, error)
                for call in arrived:
                    _fail(call, error)
                self._under_way.clear()
            for call in ended:
                if not call.answer.done():
                    call.answer.set_result([call.made[i] for i in range(len(call.requests))])

    @computed
    def _step(self, arrived: Sequence[_Call]) -> list[_Call]:
        """Add new calls, compute one step, and return the calls that it completed."""
        if not self._is_loaded:
            raise RuntimeError("no policy is loaded")
        try:
            ended = [call for call in arrived if not call.requests]
            for call in arrived:
                for index, request in enumerate(call.requests):
                    self._under_way[self._add(request, call.temperature)] = call, index
            for number, made in self._advance().items():
                call, index = self._under_way.pop(number)
                call.made[index] = made
                if len(call.made) == len(call.requests):
                    ended.append(call)
        except BaseException:
            # vLLM's state is undefined now; the next policy starts afresh.
            self._is_loaded = False
            with suppress(Exception):
                self._llm.abort_request([str(number) for number in self._under_way])
            raise
        return ended

    def _add(self, request: GenerationRequest, temperature: float) -> int:
        self._numbers += 1
        params = parameters(request, temperature, self._numbers, self._end_tokens)
        prompt = TokensPrompt(prompt_token_ids=list(request.prompt))
        self._llm.add_request(str(self._numbers), prompt, params)
        return self._numbers

    def _advance(self) -> dict[int, Generation]:
        """Compute one step; return the sequences that it completed."""
        if not self._llm.has_unfinished_requests():
            return {}
        stepped = self._llm.step()
        if self._is_loaded:  # the probe's tokens are not counted
            self._tokens_sampled += len(stepped)
            self._first_token.sampled()
        outputs = {int(one.request_id): one for one in stepped if one.finished}
        records: list[Record] = self._ask("take_records", list(outputs))
        for record, output in zip(records, outputs.values(), strict=True):
            if record.tokens != list(output.outputs[0].token_ids):
                raise RuntimeError("vLLM returned other tokens than were drawn")
        chunks = [chunk for record in records for chunk in record.chunks]
        variant, top_k = Variant(self._toploc.precision), self._toploc.top_k
        proofs = iter(build_covered_proofs(chunks, variant, top_k=top_k))
        return {
            number: Generation(
                tuple(record.tokens),
                tuple(record.logprobs),
                tuple(next(proofs) for _ in record.chunks),
            )
            for number, record in zip(outputs, records, strict=True)
        }

    @computed_telling(ValueError)
    def _load(self, policy: Policy) -> None:
        tensors = self._read(policy)
        self._is_loaded = False
        fault = None
        for _ in range(SWAPS_MAX):
            self._ask("swap_policy", str(policy.path))
            if not self._llm.reset_prefix_cache():
                raise EngineError("vLLM did not reset its prefix cache")
            fault = self._probe.head_fault(tensors, self._ask("unembed", self._probe.columns))
            fault = fault or self._probe.fault(tensors, self._try_out())
            if fault is None:
                self._is_loaded = True
                return
        raise EngineError(f"vLLM does not compute the policy that it was given: {fault}")

    def _try_out(self) -> list[Generation]:
        numbers = [self._add(request, TEMPERATURE) for request in self._probe.requests]
        made: dict[int, Generation] = {}
        while self._llm.has_unfinished_requests():
            made |= self._advance()
        return [made[number] for number in numbers]

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call all workers; return the first one's result, which equals the others'."""
        return self._llm.collective_rpc(method, args=arguments)[0]


def _fail(call: _Call, error: EngineError) -> None:
    if not call.answer.done():
        call.answer.set_exception(EngineError(str(error), error.trace))
