"""Weights in an engine's memory, and patches of them: read beside what runs, written in between.

A version differs from the one before in about one weight of a hundred, so its patch is read into
positions and values of each tensor (``stage``) while sequences of the old weights go on, and then
takes milliseconds to be written (``swap``). A patch is what the daemon made the version's file of,
so nothing is digested again but the patch itself.
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
from protocol.shardcast.encodings.planes import Words
from protocol.shardcast.encodings.positions import Positions
from protocol.shardcast.encodings.stream import PatchReader
from protocol.shardcast.encodings.tensor_file import EncodingError, TensorFile, TensorPlace
from roles.engines.files.safetensors import DTYPES, read_layout
from roles.ports.engines import Patch, Policy

CHANGED_SHARE_MAX = 0.05
"""Of all elements, in the patches that are staged: reading more takes longer than reading the file
(docs/shardcast.md)."""

_READ_BYTES = 1 << 20

_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@dataclass(slots=True)
class _Changes:
    """What patches change in one tensor: at flat ``positions[n]``, ascending, ``words[n]``."""

    positions: NDArray[Any]
    words: Words

    def overlay(self, positions: Positions, words: Words) -> None:
        """Replace those of ``words``, the bit patterns at ``positions``, that are others now."""
        places = np.searchsorted(self.positions, positions).clip(max=len(self.positions) - 1)
        own = self.positions[places] == positions
        words[own] = self.words[places[own]]


@dataclass(slots=True)
class _Staged:
    """A policy, and how it differs from the one before: changes by the names of tensors."""

    policy: Digest
    changes: dict[str, _Changes] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many elements it sets."""
        return sum(len(own.positions) for own in self.changes.values())


class PatchedWeights:
    """The weights of ``policy`` where they are in memory; used in one thread at a time.

    ``layout`` is that of its file, ``places`` say where each of the file's tensors is: it has the
    dimensions of the tensor, and more before them if it repeats it.
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
        """Each a patch of the one before it, the first of what is held."""

    def has_staged(self, policy: Digest) -> bool:
        """Return whether ``swap`` can bring a policy."""
        return any(one.policy == policy for one in self._staged)

    def stage(self, policy: Policy) -> None:
        """Read the patch that makes ``policy``.

        Stages nothing where there is no patch of what is held or staged, where that is missing,
        damaged or dense, and where the weights are held less exactly than in their file.
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
            # A patch is of a file: its tensors are in the order in which that one has them.
            if read_layout(policy.path).header == self._layout.header:
                self._staged += self._read(patch, policy.digest)
        except (OSError, EncodingError):  # the file is loaded
            return

    def swap(self, policy: Digest) -> None:
        """Write the patches up to a policy that is staged.

        When something breaks in here, nobody knows what the weights are.
        """
        count = [one.policy for one in self._staged].index(policy) + 1
        for one in self._staged[:count]:
            for name, own in one.changes.items():
                for place in self._places[name]:
                    _write(place, own)
        self._policy = policy
        del self._staged[:count]

    def _read(self, patch: Patch, policy: Digest) -> list[_Staged]:
        """Return what a patch changes; nothing when that is too much."""
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
            raise EncodingError("another patch than was decoded")
        staged = _Staged(policy)
        while parts:  # what is joined is no longer held beside its parts
            tensor, own = parts.popitem()
            staged.changes[tensor.name] = _Changes(
                np.concatenate([part.positions for part in own]),
                np.concatenate([part.words for part in own]),
            )
        return [staged]

    def _words(self, tensor: TensorPlace, positions: Positions) -> Words:
        """Return the bit patterns that a tensor has at positions after all that is staged."""
        words = _read_words(self._places[tensor.name][0], positions, tensor)
        for one in self._staged:
            if tensor.name in one.changes:
                one.changes[tensor.name].overlay(positions, words)
        return words


def _holds(held: torch.dtype, filed: torch.dtype | None) -> bool:
    """Tell whether each value of a file has one of its own in memory, and bits can be compared."""
    return held == filed or (held == torch.float32 and filed == torch.bfloat16)


def _index_type(count: int) -> type[np.signedinteger[Any]]:
    return np.int32 if count <= 1 << 31 else np.int64


def _read_words(place: Tensor, positions: Positions, tensor: TensorPlace) -> Words:
    """Return the bit patterns that the file has where ``place[copies, count]`` has values."""
    found = place[0][torch.from_numpy(positions).to(place.device)]
    bits = found.view(_INTEGERS[place.dtype]).cpu()
    if place.dtype.itemsize > tensor.element_bytes:
        bits = (bits >> 16).to(torch.int16)  # a float32 of a bf16 has nothing in its lower half
    return bits.numpy().view(f"<u{tensor.element_bytes}")


def _write(place: Tensor, changes: _Changes) -> None:
    """Set ``place[copies, count]`` to what changes say, which is of its type or bf16."""
    width = changes.words.dtype.itemsize
    bits = torch.from_numpy(changes.words.view(f"<i{width}"))
    kind = place.dtype if place.dtype.itemsize == width else torch.bfloat16
    values = bits.view(kind).to(place.device, place.dtype)
    index = torch.from_numpy(changes.positions).to(place.device, torch.int64)
    place.index_copy_(1, index, values.expand(len(place), -1))
