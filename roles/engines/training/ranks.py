"""Ranks: the processes that train one model together, and what they exchange.

All ranks get the same calls in the same order, and hold equal parts of the tensors: rank ``r`` of
``n`` has rows ``r * ceil(rows / n)`` and those after it, as FSDP does. A rank that fails or hangs
lets the others wait in an exchange: the daemon ends all of them.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from resource import RUSAGE_SELF, getrusage
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from roles.ports.storage import StorageFullError

EXCHANGE_SECONDS = 300.0
"""An exchange that takes longer fails. Ranks wait for the slowest pass among them. A guess: a rank
that died, or sends no heartbeats, is noticed earlier and elsewhere."""

_RESIDENT_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of ``ru_maxrss``, by getrusage(2)."""

_TOLD = (ValueError, StorageFullError)
"""Errors that one rank may have alone, and that then all of them raise."""

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank of ``count``; one that is alone exchanges nothing.

    ``writer`` is the same rank for exchanges of another thread: those of one thread are in order.
    """

    rank: int = 0
    count: int = 1
    mesh: DeviceMesh | None = None
    _group: dist.ProcessGroup | None = None
    _writer_group: dist.ProcessGroup | None = None

    @property
    def writer(self) -> "Ranks":
        """Exchanges of the thread that writes files."""
        return Ranks(self.rank, self.count, self.mesh, self._writer_group)

    def first_row(self, shape: Sequence[int]) -> int:
        """Return the number of the first row that this rank has of a tensor of such shape."""
        return min(shape[0], self.rank * math.ceil(shape[0] / self.count))

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the rows of a tensor that this rank has, perhaps none; a view."""
        begin, size = self.first_row(tensor.shape), math.ceil(len(tensor) / self.count)
        return tensor[begin : begin + size]

    def own(self, sizes: Mapping[K, int]) -> list[K]:
        """Return this rank's share of things of such sizes, largest first.

        Each goes to the rank that has the least so far.
        """
        loads, mine = [0] * self.count, []
        for one in sorted(sizes, key=lambda one: -sizes[one]):
            rank = loads.index(min(loads))
            loads[rank] += sizes[one]
            if rank == self.rank:
                mine.append(one)
        return mine

    def exchange(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order."""
        if self.count == 1:
            return [value]
        values: list[T] = [value] * self.count
        dist.all_gather_object(values, value, group=self._group)
        return values

    def gathered(self, own: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the whole tensor of such shape; ``own`` are the rows of this rank."""
        if self.mesh is None:
            return own
        whole = torch.empty(shape, dtype=own.dtype, device="meta")
        sharded = DTensor.from_local(
            own, self.mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        return sharded.full_tensor()

    def memory_peaks(self, device: str) -> tuple[int, ...]:
        """Return ``StepMetrics.memory_peak_bytes``; ``device`` is that of this rank."""
        if torch.device(device).type == "cuda":
            return tuple(self.exchange(torch.cuda.max_memory_allocated(device)))
        return tuple(self.exchange(getrusage(RUSAGE_SELF).ru_maxrss * _RESIDENT_UNIT_BYTES))

    def totals(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks: the same on each of them."""
        return [math.fsum(column) for column in zip(*self.exchange(tuple(values)), strict=True)]

    def together(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` on this rank, after it succeeded on all of them.

        If it raises ``ValueError`` or ``StorageFullError`` on one of them, all raise that of the
        first. After any other error, the ranks must end.
        """
        failure: Exception | None = None
        try:
            result = work()
        except _TOLD as error:
            failure = error
        for one in self.exchange(failure):
            if one is not None:
                raise one
        return result


ALONE = Ranks()


def join(rank: int, count: int, rendezvous: str, device: str) -> Ranks:
    """Meet the other ranks of this machine at the file ``rendezvous``, which none has used before.

    ``device`` is that of this rank. Raises torch's errors if the others do not come in time.
    """
    if count == 1:
        return ALONE
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are here; a host name may not resolve
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(device)
    limit = timedelta(seconds=EXCHANGE_SECONDS)
    dist.init_process_group(
        "cuda:nccl,cpu:gloo" if kind == "cuda" else "gloo",
        store=FileStore(rendezvous, count),
        rank=rank,
        world_size=count,
        timeout=limit,
    )
    group, writer_group = (dist.new_group(backend="gloo", timeout=limit) for _ in range(2))
    return Ranks(rank, count, init_device_mesh(kind, (count,)), group, writer_group)
