"""Weight patches in an engine's memory: read during generation, written between sequences.

Successive versions differ in about 1 % of the weights. ``stage`` reads a patch into positions and
values of each tensor while sequences of the old policy continue; ``swap`` then writes it within
milliseconds. The daemon made the version's file from the same patch, so only the patch is digested
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor

from protocol.core.types import Digest
from protocol.shardcast.encodings.planes import Positions, Words
from protocol.shardcast.encodings.stream import PatchReader
from protocol.shardcast.encodings.tensor_file import EncodingError, TensorFile, TensorPlace
from roles.engines.files.safetensors import DTYPES, read_layout
from roles.ports.engines import Patch, Policy

CHANGED_SHARE_MAX = 0.05
"""Maximum share of changed elements to stage: above it, reading the file is faster
(docs/shardcast.md)."""

_READ_BYTES = 1 << 20

_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@dataclass(slots=True)
class _Changes:
    """Changes of one tensor: ``words[n]`` at flat ``positions[n]``, ascending."""

    positions: NDArray[Any]
    words: Words

    def overlay(self, positions: Positions, words: Words) -> None:
        """Apply these changes to ``words``, the bit patterns at ``positions``."""
        places = np.searchsorted(self.positions, positions).clip(max=len(self.positions) - 1)
        own = self.positions[places] == positions
        words[own] = self.words[places[own]]


@dataclass(slots=True)
class _Staged:
    """A policy and its changes against the one before, by tensor name."""

    policy: Digest
    changes: dict[str, _Changes] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of changed elements."""
        return sum(len(own.positions) for own in self.changes.values())


class PatchedWeights:
    """The weights of ``policy`` in memory; use from one thread at a time.

    ``layout`` is that of the policy's file. ``places`` are the views of each of its tensors, with
    leading dimensions if the tensor has several copies.
    """

    def __init__(
        self, policy: Digest, layout: TensorFile, places: Mapping[str, Sequence[Tensor]]
    ) -> None:
        self._policy = policy
        self._layout = layout
        self._places = {
            tensor.name: [place.view(-1, tensor.count) for place in places[tensor.name]]
            for tensor in layout.places
        }
        self._can_be_patched = all(
            _holds(place.dtype, DTYPES.get(tensor.dtype))
            for tensor in layout.places
            for place in self._places[tensor.name]
        )
        self._changes_max = CHANGED_SHARE_MAX * sum(tensor.count for tensor in layout.places)
        self._staged: list[_Staged] = []
        """A chain of patches; the first applies to the loaded weights."""

    def has_staged(self, policy: Digest) -> bool:
        """Return whether ``swap`` can switch to a policy."""
        return any(one.policy == policy for one in self._staged)

    def stage(self, policy: Policy) -> None:
        """Read the patch that makes ``policy``.

        Stages nothing if the patch is missing, damaged or dense, or has another base. The same
        holds if the weights in memory are less precise than in their file.
        """
        patch = policy.patch
        known = [self._policy, *(one.policy for one in self._staged)]
        if (
            patch is None
            or patch.base not in known
            or policy.digest in known
            or not self._can_be_patched
        ):
            return
        del self._staged[known.index(patch.base) :]  # another branch
        try:
            # A patch's positions follow the tensor order of its file.
            if read_layout(policy.path).header == self._layout.header:
                self._staged += self._read(patch, policy.digest)
        except (OSError, EncodingError):  # the file will be loaded instead
            return

    def swap(self, policy: Digest) -> None:
        """Apply the patches up to a staged policy.

        After an exception the weights are undefined.
        """
        count = [one.policy for one in self._staged].index(policy) + 1
        for one in self._staged[:count]:
            for name, own in one.changes.items():
                for place in self._places[name]:
                    _write(place, own)
        self._policy = policy
        del self._staged[:count]

    def _read(self, patch: Patch, policy: Digest) -> list[_Staged]:
        """Return the changes of a patch; an empty list if there are too many."""
        reader, hasher = PatchReader(patch.base, self._layout, self._words), blake3()
        left = self._changes_max - sum(one.count for one in self._staged)
        parts: dict[TensorPlace, list[_Changes]] = {}
        with patch.path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                hasher.update(data)
                for change in reader.feed(data):
                    left -= len(change.positions)
                    if left < 0:
                        return []
                    narrow = change.positions.astype(_index_type(change.tensor.count))
                    parts.setdefault(change.tensor, []).append(_Changes(narrow, change.words))
        reader.finish()
        if hasher.digest() != patch.digest:
            raise EncodingError("the patch differs from the decoded one")
        staged = _Staged(policy)
        while parts:  # free each part as soon as it is joined
            tensor, own = parts.popitem()
            staged.changes[tensor.name] = _Changes(
                np.concatenate([part.positions for part in own]),
                np.concatenate([part.words for part in own]),
            )
        return [staged]

    def _words(self, tensor: TensorPlace, positions: Positions) -> Words:
        """Return a tensor's bit patterns at positions, after all staged changes."""
        words = _read_words(self._places[tensor.name][0], positions, tensor)
        for one in self._staged:
            if tensor.name in one.changes:
                one.changes[tensor.name].overlay(positions, words)
        return words


def _holds(held: torch.dtype, filed: torch.dtype | None) -> bool:
    """Return whether the dtype in memory keeps every value of the file, so bits can be compared."""
    return held == filed or (held == torch.float32 and filed == torch.bfloat16)


def _index_type(count: int) -> type[np.signedinteger[Any]]:
    return np.int32 if count <= 1 << 31 else np.int64


def _read_words(place: Tensor, positions: Positions, tensor: TensorPlace) -> Words:
    """Return the bit patterns in the file's dtype at positions of ``place[copies, count]``."""
    found = place[0][torch.from_numpy(positions).to(place.device)]
    bits = found.view(_INTEGERS[place.dtype]).cpu()
    if place.dtype.itemsize > tensor.element_bytes:
        bits = (bits >> 16).to(torch.int16)  # a bf16 in float32 has a zero lower half
    return bits.numpy().view(f"<u{tensor.element_bytes}")


def _write(place: Tensor, changes: _Changes) -> None:
    """Write changes, of its own type or bf16, to ``place[copies, count]``."""
    width = changes.words.dtype.itemsize
    bits = torch.from_numpy(changes.words.view(f"<i{width}"))
    kind = place.dtype if place.dtype.itemsize == width else torch.bfloat16
    values = bits.view(kind).to(place.device, place.dtype)
    index = torch.from_numpy(changes.positions).to(place.device, torch.int64)
    place.index_copy_(1, index, values.expand(len(place), -1))
