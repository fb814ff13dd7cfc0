"""What every engine is made of: the model's shape, a device, and one thread that computes."""

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
    """Computes with one model; its calls run one after another in one thread of its own.

    A cancelled call still runs to its end there: state is never left half changed. One torch
    operation uses one CPU thread: two processes with two each on two cores ran 8 to 20 times slower
    (measured).
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
        """Drop what waits and let the running call end; idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _read(self, policy: Policy) -> dict[str, Tensor]:
        """Return the tensors of a policy; raises ``ValueError`` as ``read_policy``."""
        return read_policy(policy.path, policy.digest, self._shapes)

    def _model_of(self, tensors: dict[str, Tensor], dtype: torch.dtype) -> CausalLM:
        """Return a model with tensors whose names were checked."""
        return model_of(self._config, tensors, dtype, self._device, self._attention)


def prepare_thread() -> None:
    """Set what torch would choose otherwise; all but the threads holds for the whole process.

    On Hopper it prefers cuDNN's attention, which builds a plan of some 30 ms for every length of
    the keys, so for every step of a decode. And some images let float32 products be TF32.
    """
    torch.set_num_threads(1)
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    torch.set_float32_matmul_precision("highest")


def give_back_memory() -> None:
    """Give memory that is free within the process back to the system, where libc can.

    glibc keeps pieces between larger ones: after a few steps 1.8 of 5.0 GB of a trainer of 135
    million weights (measured). It takes less than half a second there.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


E = TypeVar("E", bound=BuiltinEngine)


def computed(
    method: Callable[Concatenate[E, P], T],
) -> Callable[Concatenate[E, P], Coroutine[Any, Any, T]]:
    """Return the method as a coroutine function that runs it in the engine's thread.

    Whatever breaks in it is an ``EngineError``.
    """
    return computed_telling()(method)


def computed_telling(
    *told: type[Exception],
) -> Callable[
    [Callable[Concatenate[E, P], T]], Callable[Concatenate[E, P], Coroutine[Any, Any, T]]
]:
    """Do what ``computed`` does, but for the errors ``told``: they come as they are."""

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
    """Return the method with an ``EngineError`` for whatever breaks in it but the errors ``told``.

    It is for the engine's own thread.
    """
    passed_on: tuple[type[BaseException], ...] = (KeyboardInterrupt, *told)

    def within(engine: E, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(engine, *args, **kwargs)
        except passed_on:
            raise
        except BaseException as error:  # noqa: BLE001 - libraries raise what they like
            broken = EngineError.of(error)
        # Out here nothing refers to the frames that failed, so what they held can be given
        # back: to the next try, and to whoever else computes on this device.
        torch.cuda.empty_cache()
        raise broken

    return within
