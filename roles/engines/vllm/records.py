"""Records of vLLM's running sequences: the numbers that a rollout contains for each token.

States stay on the device. A chunk's states are kept until it is full or its sequence ends. Then its
largest values are selected there, as in ``protocol.toploc.selection``, and only those are copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protocol.toploc.proof import Covered

_ROWS_PER_PASS = 16
"""Chunks ranked at once: the keys of 32 x 8192 values each take 34 MB then."""

_INDEX_MASK = (1 << 32) - 1
_PATTERNS = {torch.bfloat16: (torch.int16, 0xFFFF), torch.float32: (torch.int32, 0xFFFF_FFFF)}


@dataclass(frozen=True, slots=True)
class Record:
    """One sequence: tokens, log-probabilities, and the values that its proofs cover."""

    tokens: list[int]
    logprobs: list[float]
    chunks: list[Covered]


@dataclass(slots=True)
class _OpenRecord:
    """A running sequence; ``slot`` is the index of its states."""

    slot: int
    record: Record = field(default_factory=lambda: Record([], [], []))


class Records:
    """Sequences by number, from their first token until they are taken."""

    def __init__(
        self, hidden: int, dtype: torch.dtype, device: torch.device, chunk_tokens: int, top_k: int
    ) -> None:
        self._chunk_tokens = chunk_tokens
        self._top_k = top_k
        self._states = torch.empty((0, chunk_tokens, hidden), dtype=dtype, device=device)
        self._free: list[int] = []
        self._open: dict[int, _OpenRecord] = {}

    def add(
        self,
        numbers: Sequence[int],
        positions: Sequence[int],
        states: Tensor,
        tokens: Tensor,
        logprobs: Tensor,
    ) -> None:
        """Record one token of each sequence, drawn from ``states[n, hidden]``.

        A later record of a token replaces the earlier one: vLLM also samples after a partial prompt
        and discards that token.
        """
        rows = [self._row(number) for number in numbers]
        columns = [position % self._chunk_tokens for position in positions]
        self._states[[row.slot for row in rows], columns] = states
        drawn = zip(rows, positions, tokens.tolist(), logprobs.tolist(), strict=True)
        for row, position, token, logprob in drawn:
            known = row.record
            if position > len(known.tokens):
                raise RuntimeError("vLLM has a token that was not recorded")
            del known.tokens[position:], known.logprobs[position:]
            del known.chunks[position // self._chunk_tokens :]
            known.tokens.append(token)
            known.logprobs.append(logprob)
        self._cover([row for row in rows if not len(row.record.tokens) % self._chunk_tokens])

    def take(self, numbers: Sequence[int]) -> list[Record]:
        """Return and remove ended sequences."""
        rows = [self._open.pop(number) for number in numbers]
        self._cover([row for row in rows if len(row.record.tokens) % self._chunk_tokens])
        self._free += [row.slot for row in rows]
        return [row.record for row in rows]

    def forget(self) -> None:
        """Remove all sequences."""
        self._free += [row.slot for row in self._open.values()]
        self._open.clear()

    def _row(self, number: int) -> _OpenRecord:
        if number not in self._open:
            if not self._free:
                self._grow()
            self._open[number] = _OpenRecord(self._free.pop())
        return self._open[number]

    def _grow(self) -> None:
        """Double the capacity: preempted sequences keep their slots."""
        count = len(self._states)
        self._states = torch.cat([self._states, self._states.new_empty(self._shape(count))])
        self._free += range(count, len(self._states))

    def _shape(self, count: int) -> tuple[int, ...]:
        return (max(1, count), *self._states.shape[1:])

    def _cover(self, rows: Sequence[_OpenRecord]) -> None:
        """Select the values that the proofs of the last chunks cover."""
        for start in range(0, len(rows), _ROWS_PER_PASS):
            block = rows[start : start + _ROWS_PER_PASS]
            lengths = [(len(row.record.tokens) - 1) % self._chunk_tokens + 1 for row in block]
            chunks = self._states[[row.slot for row in block]]
            for row, own in zip(block, covered(chunks, lengths, self._top_k), strict=True):
                row.record.chunks.append(own)


def covered(chunks: Tensor, lengths: Sequence[int], top_k: int) -> list[Covered]:
    """Return the ``top_k`` largest of the first ``lengths[n]`` states of ``chunks[n, tokens, h]``.

    Magnitude and inverted index form one key, so the result equals the protocol's selection, ties
    included.
    """
    integer, pattern = _PATTERNS[chunks.dtype]
    bits = chunks.flatten(1).view(integer).long() & pattern
    indices = torch.arange(bits.shape[1], device=bits.device)
    keys = (bits & pattern >> 1) << 32 | (_INDEX_MASK - indices)
    hidden = chunks.shape[2]
    sizes = [length * hidden for length in lengths]
    ends = torch.tensor(sizes, device=bits.device)
    keys.masked_fill_(indices >= ends[:, None], -1)
    top = keys.topk(min(top_k, bits.shape[1])).values
    found = _INDEX_MASK - (top & _INDEX_MASK)
    # Values beyond a chunk's end come last; their index is replaced by one that sorts last.
    found, _ = found.masked_fill_(top < 0, bits.shape[1]).sort()
    values = bits.gather(1, found.clamp(max=bits.shape[1] - 1))
    counts = [min(top_k, size) for size in sizes]
    rows = zip(found.cpu().numpy(), values.cpu().numpy(), counts, sizes, strict=True)
    return [Covered(index[:count], value[:count], size) for index, value, count, size in rows]
