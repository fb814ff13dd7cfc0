"""Base of all engines: the model's shape, a device, and one computing thread."""

import asyncio
import ctypes
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from protocol.run.recipe import ModelSection
from roles.engines.architectures.architecture import CausalLM
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import model_of, shapes_of
from roles.engines.files.policy import DTYPES, Precision, read_policy
from roles.ports.engines import EngineError, Policy

P = ParamSpec("P")
T = TypeVar("T")


class BuiltinEngine:
    """Compute with one model; calls run one after another in the engine's own thread.

    A cancelled call still runs to its end, so state is never half changed. A torch operation uses
    one CPU thread: two processes with two each on two cores ran 8 to 20 times slower (measured).
    """

    def __init__(
        self, model: ModelSection, precision: Precision, device: str, attention: str = "sdpa"
    ) -> None:
        self._config = configuration(model.architecture, model.config)
        self._shapes = shapes_of(self._config)
        self._dtype = DTYPES[precision]
        self._device = device
        self._attention = attention
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix=type(self).__name__,
            initializer=prepare_thread,
        )

    async def _compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Drop queued calls and let the running one end; idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _read(self, policy: Policy) -> dict[str, Tensor]:
        """Return a policy's tensors; raises ``ValueError`` as ``read_policy``."""
        return read_policy(policy.path, policy.digest, self._shapes)

    def _model_of(self, tensors: dict[str, Tensor], dtype: torch.dtype) -> CausalLM:
        """Return a model with tensors whose names were checked."""
        return model_of(self._config, tensors, dtype, self._device, self._attention)


def prepare_thread() -> None:
    """Override torch's defaults; all but the thread count hold for the whole process.

    On Hopper torch prefers cuDNN's attention, which builds a plan of some 30 ms for every key
    length, so for every decode step. Some images also allow TF32 for float32 products.
    """
    torch.set_num_threads(1)
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    torch.set_float32_matmul_precision("highest")


def give_back_memory() -> None:
    """Return free heap memory to the system, where libc supports it.

    glibc keeps fragments: after a few steps 1.8 of the 5.0 GB of a trainer of 135 million weights
    (measured). The call takes less than 0.5 s there.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


E = TypeVar("E", bound=BuiltinEngine)


def computed(
    method: Callable[Concatenate[E, P], T],
) -> Callable[Concatenate[E, P], Coroutine[Any, Any, T]]:
    """Wrap a method as a coroutine function that runs it in the engine's thread.

    Any exception in it becomes an ``EngineError``.
    """
    return computed_telling()(method)


def computed_telling(
    *told: type[Exception],
) -> Callable[
    [Callable[Concatenate[E, P], T]], Callable[Concatenate[E, P], Coroutine[Any, Any, T]]
]:
    """Do as ``computed``, but pass exceptions of the types ``told`` through unchanged."""

    def decorated(
        method: Callable[Concatenate[E, P], T],
    ) -> Callable[Concatenate[E, P], Coroutine[Any, Any, T]]:
        within = guarded(method, *told)

        @wraps(method)
        async def run(engine: E, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await engine._compute(within, engine, *args, **kwargs)  # noqa: SLF001 - its own

        return run

    return decorated


def guarded(
    method: Callable[Concatenate[E, P], T], *told: type[Exception]
) -> Callable[Concatenate[E, P], T]:
    """Wrap a method: exceptions other than ``told`` become an ``EngineError``.

    For calls in the engine's own thread.
    """
    passed_on: tuple[type[BaseException], ...] = (KeyboardInterrupt, *told)

    def within(engine: E, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(engine, *args, **kwargs)
        except passed_on:
            raise
        except BaseException as error:  # noqa: BLE001 - libraries raise many types
            broken = EngineError.of(error)
        # The failed frames are no longer referenced here, so their device memory can be freed for
        # the next try and for other processes.
        torch.cuda.empty_cache()
        raise broken

    return within
