"""Continuous batching: sequences of several calls are decoded together and finish one by one.

Sequences that begin together are a *cohort* and share a cache; all cohorts share each matrix
product of the model. A memory budget for caches bounds how many run at once. Each sequence is
expected to become as long as recent ones; the others wait. If sequences become longer, the youngest
are evicted and prefilled again when there is room, with the tokens they have. The result is the
same: a sequence follows from its seed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roles.engines.builtin.cache import COLUMNS_PER_BLOCK, Cache
from roles.engines.builtin.decoder import Decoder
from roles.engines.sampling.gumbel_noise import Draws

Noise = Callable[[NDArray[np.uint64], NDArray[np.int64]], Draws | None]
"""(seeds, positions) -> noise to add to the scaled logits; None is greedy decoding."""

COHORTS_MAX = 4
"""Each needs its own attention in every layer; above this, two are joined. A guess."""

PREFILL_TOKENS_MAX = 1 << 14
"""Tokens of one prefill, padding included, unless a single sequence is longer."""

EXPECTED_SHARE = 0.25
"""Expected length as a share of a sequence's maximum, before any has ended; a guess."""

EXPECTED_WEIGHT = 1 / 64
"""Weight of each ended sequence in the moving average of lengths."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Generated tokens ``[n]``, log-probabilities ``[n]`` and hidden states ``[n, h]``.

    State ``i`` is the final hidden state, after the last norm, from which token ``i`` was drawn.
    """

    tokens: Tensor
    logprobs: Tensor
    states: Tensor


@dataclass(eq=False, slots=True)
class Continuation:
    """One prompt, continued until an end token or for ``tokens_max`` tokens."""

    prompt: tuple[int, ...]
    seed: int
    tokens_max: int
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    parts: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Log-probabilities and states of the tokens, filled by ``DecodeBatch.collect``."""

    @property
    def left(self) -> int:
        """Remaining tokens."""
        return self.tokens_max - len(self.tokens)

    def take(self) -> tuple[Tensor, Tensor]:
        """Return and drop the collected log-probabilities and states."""
        logprobs, states = (torch.cat(part) for part in zip(*self.parts, strict=True))
        self.parts.clear()
        return logprobs, states


class Lengths:
    """Expected sequence length, a moving average over ended sequences."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def note(self, tokens: int) -> None:
        """Record the length of an ended sequence."""
        mean = tokens if self._mean is None else self._mean
        self._mean = mean + (tokens - mean) * EXPECTED_WEIGHT

    def expected(self, one: Continuation) -> int:
        """Return the expected length in tokens: at least a block more than now, if allowed."""
        mean = one.tokens_max * EXPECTED_SHARE if self._mean is None else self._mean
        return min(one.tokens_max, max(len(one.tokens) + COLUMNS_PER_BLOCK, round(mean)))


@dataclass(eq=False, slots=True)
class _Cohort:
    """Rows that share a cache; their last ``tokens`` are not in it yet."""

    rows: list[Continuation]
    cache: Cache
    tokens: Tensor


class DecodeBatch:
    """Sequences that one engine decodes together.

    ``cache_bytes_max`` bounds the caches, unless a single sequence needs more. ``steps`` tokens of
    each row are computed between two reads of the results: each read synchronises with the GPU.
    """

    def __init__(
        self,
        decoder: Decoder,
        noise: Noise,
        lengths: Lengths,
        *,
        cache_bytes_max: int,
        rows_max: int,
        steps: int,
    ) -> None:
        self._decoder = decoder
        self._noise = noise
        self._lengths = lengths
        self._columns_max = cache_bytes_max // decoder.bytes_per_column
        self._rows_max = rows_max
        self._steps = steps
        self._end_tokens = decoder.end_tokens
        self._waiting: deque[Continuation] = deque()
        self._cohorts: list[_Cohort] = []
        self._log: list[tuple[list[Continuation], list[int], Tensor, Tensor]] = []
        """Rows, their valid token counts, log-probabilities and states ``[steps, rows]``."""

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(cohort.rows) for cohort in self._cohorts)

    @property
    def uncollected_steps(self) -> int:
        """Tokens per row that ``collect`` has not fetched yet."""
        return len(self._log) * self._steps

    def add(self, sequences: Iterable[Continuation]) -> None:
        """Queue sequences."""
        self._waiting.extend(sequences)

    @torch.inference_mode()
    def drop(self, sequences: Iterable[Continuation]) -> None:
        """Cancel sequences."""
        dropped = {id(one) for one in sequences}
        self._waiting = deque(one for one in self._waiting if id(one) not in dropped)
        for cohort in list(self._cohorts):
            self._leave(cohort, [n for n, one in enumerate(cohort.rows) if id(one) in dropped])

    @torch.inference_mode()
    def advance(self, temperature: float) -> int:
        """Add up to ``steps`` tokens to every running row; return how many in total.

        Each token is ``argmax(logits / temperature + noise)``.
        """
        evicted = self._make_room()
        states = []
        if self._cohorts:
            last = torch.cat([cohort.tokens for cohort in self._cohorts])
            states.append(self._decoder.step(last, self._caches()))
        if not evicted:  # otherwise rows would alternate between eviction and admission
            states += self._admit()
        rows = [one for cohort in self._cohorts for one in cohort.rows]
        sampled: list[Tensor] = []
        logprobs: list[Tensor] = []
        draws = self._draws(rows)
        states = [torch.cat(states)]
        for step in range(self._steps):
            if step:
                states.append(self._decoder.step(sampled[-1], self._caches()))
            found = self._decoder.head.sample(states[-1], temperature, draws[step])
            sampled.append(found.tokens)
            logprobs.append(found.logprobs)
        counts = self._look(rows, torch.stack(sampled).tolist())
        self._log.append((rows, counts, torch.stack(logprobs).cpu(), torch.stack(states).cpu()))
        self._settle(sampled[-1])
        return sum(counts)

    @torch.inference_mode()
    def collect(self) -> None:
        """Move log-probabilities and states of all tokens so far to their sequences."""
        if not self._log:
            return
        known = {id(one): one for rows, *_ in self._log for one in rows}
        names = []
        for rows, counts, *_ in self._log:
            steps = np.arange(self._steps)[:, None]
            # Tokens after an end token do not count.
            names.append(np.where(steps < counts, np.array([id(one) for one in rows]), 0).ravel())
        owners = np.concatenate(names)
        order = np.argsort(owners, kind="stable")[np.count_nonzero(owners == 0) :]
        places = torch.from_numpy(order)
        logprobs = torch.cat([entry[2].flatten() for entry in self._log])[places]
        states = torch.cat([entry[3].flatten(0, 1) for entry in self._log])[places]
        self._log.clear()
        found, lengths = np.unique(owners[order], return_counts=True)
        sizes = lengths.tolist()
        parts = zip(torch.split(logprobs, sizes), torch.split(states, sizes), strict=True)
        for name, part in zip(found.tolist(), parts, strict=True):
            known[name].parts.append(part)

    def _caches(self) -> list[Cache]:
        return [cohort.cache for cohort in self._cohorts]

    def _draws(self, rows: Sequence[Continuation]) -> list[Draws | None]:
        """Return the draws of the next steps; only their keys are copied to a GPU, all at once."""
        seeds = np.array([one.seed for one in rows], dtype=np.uint64)
        positions = np.array([len(one.tokens) for one in rows], dtype=np.int64)
        if self._steps == 1:
            return [self._noise(seeds, positions)]
        ahead = (positions + np.arange(self._steps)[:, None]).ravel()
        drawn = self._noise(np.tile(seeds, self._steps), ahead)
        if drawn is None:
            return [None] * self._steps
        return [replace(drawn, keys=own) for own in torch.split(drawn.keys, len(rows))]

    def _look(self, rows: Sequence[Continuation], sampled: list[list[int]]) -> list[int]:
        """Append to each row its tokens up to its end; return how many per row."""
        counts = []
        for place, one in enumerate(rows):
            before = len(one.tokens)
            for tokens in sampled:
                token = tokens[place]
                one.tokens.append(token)
                if token in self._end_tokens or len(one.tokens) == one.tokens_max:
                    one.ended = True
                    self._lengths.note(len(one.tokens))
                    break
            counts.append(len(one.tokens) - before)
        return counts

    def _settle(self, last: Tensor) -> None:
        """Keep the last tokens of all rows; remove the rows that have ended."""
        lengths = [len(cohort.rows) for cohort in self._cohorts]
        for cohort, tokens in zip(list(self._cohorts), torch.split(last, lengths), strict=True):
            cohort.tokens = tokens
            self._leave(cohort, [n for n, one in enumerate(cohort.rows) if one.ended])
        while len(self._cohorts) > COHORTS_MAX:
            self._join()

    def _leave(self, cohort: _Cohort, rows: Sequence[int]) -> None:
        if len(rows) == len(cohort.rows):
            self._cohorts.remove(cohort)
        elif rows:
            order = cohort.cache.drop(rows)
            cohort.rows = [cohort.rows[row] for row in order]
            cohort.tokens = cohort.tokens[torch.tensor(order, device=cohort.tokens.device)]

    def _join(self) -> None:
        """Join the two cohorts that need the least padding; the shorter one is padded."""

        def waste(pair: tuple[_Cohort, _Cohort]) -> int:
            low, high = sorted(pair, key=lambda cohort: cohort.cache.filled)
            return (high.cache.filled - low.cache.filled) * len(low.rows)

        one, other = min(combinations(self._cohorts, 2), key=waste)
        one.cache = Cache.joined(one.cache, other.cache)
        one.rows = one.rows + other.rows
        one.tokens = torch.cat([one.tokens, other.tokens])
        self._cohorts.remove(other)

    # Memory

    def _make_room(self) -> bool:
        """Grow caches for the next steps; tell whether rows had to be evicted."""
        evicted = False
        while self._held() > self._columns_max and sum(len(c.rows) for c in self._cohorts) > 1:
            self._evict()
            evicted = True
        for cohort in self._cohorts:
            cohort.cache.grow(self._columns(cohort))
        return evicted

    def _held(self) -> int:
        """Return rows times columns of all caches after growing."""
        return sum(
            max(cohort.cache.held, len(cohort.rows) * self._columns(cohort))
            for cohort in self._cohorts
        )

    def _columns(self, cohort: _Cohort) -> int:
        cache = cohort.cache
        if cache.filled + self._steps <= cache.columns:
            return cache.columns
        return cache.filled + self._room(max(one.left for one in cohort.rows))

    def _room(self, left: int) -> int:
        """Return how many columns to add at once: a block, or as many as can be filled."""
        return min(left, COLUMNS_PER_BLOCK) + self._steps

    def _evict(self) -> None:
        """Return the second half of the youngest cohort to the queue."""
        cohort = self._cohorts[-1]
        kept = len(cohort.rows) // 2
        self._waiting.extendleft(reversed(cohort.rows[kept:]))
        self._leave(cohort, range(kept, len(cohort.rows)))

    def _admit(self) -> list[Tensor]:
        """Start as many sequences as fit; return their states."""
        states = []
        while wave := self._wave():
            contexts = [(*one.prompt, *one.tokens) for one in wave]
            room = self._room(max(one.left for one in wave))
            cache, own = self._decoder.prefill(contexts, room)
            states.append(own)
            self._cohorts.append(_Cohort(wave, cache, own.new_empty(0)))
        return states

    def _wave(self) -> list[Continuation]:
        """Take the next sequences from the queue for one prefill."""
        wave: list[Continuation] = []
        if not self._waiting:
            return wave
        running = [one for cohort in self._cohorts for one in cohort.rows]
        held = self._held()
        expected = max(held, sum(map(self._expected, running)))
        different: set[tuple[int, ...]] = set()
        width = left = 0
        while self._waiting and len(running) + len(wave) < self._rows_max:
            one = self._waiting[0]
            context = (*one.prompt, *one.tokens)
            different.add(context)
            width, left = max(width, len(context)), max(left, one.left)
            expected += self._expected(one)
            taken = (len(wave) + 1) * (width + self._room(left))
            full = max(expected, held + taken) > self._columns_max
            too_wide = len(different) * width > PREFILL_TOKENS_MAX
            if (too_wide and wave) or (full and (wave or running)):
                break
            wave.append(self._waiting.popleft())
        return wave

    def _expected(self, one: Continuation) -> int:
        return len(one.prompt) + self._lengths.expected(one)


def decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    tokens_max: Sequence[int],
    temperature: float,
    noise: Noise,
    *,
    steps: int = 1,
) -> list[Decoded]:
    """Continue every prompt until an end token or its ``tokens_max``; its seed is its index."""
    sequences = [
        Continuation(tuple(prompt), place, most)
        for place, (prompt, most) in enumerate(zip(prompts, tokens_max, strict=True))
    ]
    batch = DecodeBatch(
        decoder,
        noise,
        Lengths(),
        cache_bytes_max=1 << 62,
        rows_max=max(1, len(sequences)),
        steps=steps,
    )
    batch.add(sequences)
    while len(batch):
        batch.advance(temperature)
    batch.collect()
    return [Decoded(torch.tensor(one.tokens), *one.take()) for one in sequences]
