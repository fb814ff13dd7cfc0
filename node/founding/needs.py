"""Estimate of the memory, disk and compute that a run needs, and the check of a node's disk.

The estimate is from the manifest alone.

Figures without a source are sums of the built-in engines' allocations.
"""

import math
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from node.founding.sizes import (
    embedding_weights_in,
    layer_weights_in,
    number_of,
    weights_in,
)
from node.local.config import NodeConfig
from node.local.datadir import DataDir, bytes_under
from node.local.errors import ExitCode, NodeError
from node.local.units import bytes_text
from protocol.core.types import Role
from protocol.run.manifest import RunManifest
from protocol.run.recipe import STATES_KEPT, ModelSection, ShardcastSection
from protocol.shardcast.encodings import ENCODING_PAYS
from roles.engines.factory import policies_kept

GIB = 2**30

PASS_TOKENS = 16_384
"""Tokens of a validator's prefill and of a trainer's pass: the engines' default."""

ENGINE_BYTES = GIB
"""Memory of an engine's process without a model; on a CPU torch's libraries take half of it."""

ADAM_BYTES_PER_WEIGHT = 16
"""Float32 masters, gradients and two moments."""

ROUNDED_BYTES_PER_WEIGHT = 4
"""Weights of a bf16 policy, with which a trainer computes in float32, beside their masters."""

STATE_BYTES_PER_WEIGHT = 12
"""Part that is written to disk after each version."""

OUTER_STATE_BYTES_PER_WEIGHT = 4
"""Outer momentum in the states of a run with outer steps."""

OUTER_BYTES_PER_WEIGHT = 16
"""Outer weights, their momentum, and what the last differences left out, in float32 on the host."""

DIFFERENCE_BYTES_PER_WEIGHT = {"int8": 1 + 4 / 256, "float32": 4.0}

HEAD_BYTES = 2**29
"""Logits of a chunk of the trainer's output layer, values derived from them, and the probabilities
that it keeps."""

RANKS = (1, 2, 4, 8, 16)
"""Devices of a trainer that the estimate covers."""

LAYERS_GATHERED = 2
"""Decoder layers of which a rank holds all weights: the one that computes, and the next."""

PATCH_SHARE = {"bf16": 0.05, "fp32": 0.6}
"""Size of a patch relative to the version's file. Measured: 1 to 2.5 % and 30 % for 135 million
weights at a learning rate of 1e-5, and 60 % for the testnet's model."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of memory by role, of disk and of each version; tokens; operations (FLOP)."""

    weights: int
    version_bytes: int
    worker_bytes: int
    validator_bytes: int
    trainer_bytes: int
    rank_bytes: Mapping[int, int]
    """Bytes on each device of a trainer with so many."""
    disk_bytes: int
    trainer_disk_bytes: int
    blob_bytes: int
    """Part of the disk space for blobs served to peers, which a quota limits."""
    trainer_blob_bytes: int
    host_bytes: int
    """Memory of a trainer's host for outer steps, beside its device; 0 in a run without them."""
    difference_bytes: int
    """Size of a trainer's difference of a round; 0 in a run without outer steps."""
    round_bytes: int
    """Bytes that a trainer downloads in a round: the differences of the others."""
    rollout_tokens: int
    """Upper bound: every sequence at its maximum length."""
    step_tokens: int
    """Of a version and one trainer, as ``step_flop``."""
    rollout_flop: int
    """Operations to generate a rollout; a check takes as many, in one prefill."""
    step_flop: int

    def memory_of(self, role: Role) -> int:
        """Return the bytes of memory of a role, on its compute device."""
        of_role = {
            Role.INFERENCE: self.worker_bytes,
            Role.VALIDATOR: self.validator_bytes,
            Role.TRAINER: self.trainer_bytes,
        }
        return of_role.get(role, 0)

    def disk_of(self, roles: Collection[Role]) -> int:
        """Return the bytes of disk of a node with these roles."""
        return self.trainer_disk_bytes if Role.TRAINER in roles else self.disk_bytes

    def blobs_of(self, roles: Collection[Role]) -> int:
        """Return the bytes of blobs that a node with these roles must keep."""
        return self.trainer_blob_bytes if Role.TRAINER in roles else self.blob_bytes


def estimate(manifest: RunManifest) -> Needs | None:
    """Return the needs of a run, without an engine; None for a model that lacks a size."""
    try:
        return needs_of(manifest, weights_in(manifest.model))
    except ValueError:
        return None


def needs_of(manifest: RunManifest, weights: int) -> Needs:
    """Return the needs of a run with a model of ``weights`` parameters."""
    model, sampling, grpo = manifest.model, manifest.sampling, manifest.grpo
    width = 4 if model.dtype == "fp32" else 2
    version_bytes = weights * width
    head_bytes = number_of(model, "hidden_size") * model.vocabulary_size * 4
    head_bytes *= model.head == "fp32" and model.dtype != "fp32"
    sequences = sampling.prompts_per_rollout * sampling.group_size
    rollout_tokens = sequences * sampling.tokens_max
    outer = grpo.outer
    step_tokens = grpo.batch_max * grpo.batch_steps(1) * rollout_tokens
    difference_bytes = 0
    if outer is not None:
        difference_bytes = round(weights * DIFFERENCE_BYTES_PER_WEIGHT[outer.encoding])
    trainers = 1 if outer is None else min(outer.trainers, len(manifest.genesis.trainers))
    # Those from the older kept state to the newest version, and the round in progress.
    rounds = STATES_KEPT * manifest.shardcast.state_every + 1
    differences = rounds * trainers * difference_bytes
    passed = _pass_bytes(model)
    versions = manifest.shardcast.versions_kept * version_bytes
    files = sum(file.total_bytes for file in manifest.genesis.files.values())
    training_bytes = weights * ADAM_BYTES_PER_WEIGHT
    training_bytes += weights * ROUNDED_BYTES_PER_WEIGHT * (model.dtype != "fp32")
    working_bytes = width * passed + HEAD_BYTES + ENGINE_BYTES
    state_bytes_per_weight = STATE_BYTES_PER_WEIGHT
    state_bytes_per_weight += OUTER_STATE_BYTES_PER_WEIGHT * (outer is not None)
    states = STATES_KEPT * state_bytes_per_weight * weights
    heirs = len(manifest.genesis.trainers) > 1
    rules = manifest.shardcast
    return Needs(
        weights=weights,
        version_bytes=version_bytes,
        worker_bytes=version_bytes
        + head_bytes
        + rollout_tokens * _cache_bytes_per_token(model, width)
        + ENGINE_BYTES,
        validator_bytes=policies_kept(manifest) * (version_bytes + head_bytes)
        + width * passed
        + ENGINE_BYTES,
        trainer_bytes=training_bytes + working_bytes,
        rank_bytes={
            ranks: training_bytes // ranks + working_bytes + _gathered_bytes(model) * (ranks > 1)
            for ranks in RANKS
        },
        # A file is stored twice: for engines and as blobs for peers.
        disk_bytes=2 * (versions + files),
        trainer_disk_bytes=2 * (versions + files + states + differences),
        blob_bytes=files
        + _form_bytes(manifest, version_bytes, math.ceil(rules.versions_kept / rules.full_every)),
        # A trainer serves the file of each of its versions, its state to its successor, and
        # differences to the others of its rounds.
        trainer_blob_bytes=files
        + _form_bytes(manifest, version_bytes, _forms_kept_max(rules))
        + heirs * states
        + differences,
        # An outer step reads the differences of all trainers.
        host_bytes=(outer is not None) * OUTER_BYTES_PER_WEIGHT * weights
        + trainers * difference_bytes,
        difference_bytes=difference_bytes,
        round_bytes=(trainers - 1) * difference_bytes,
        rollout_tokens=rollout_tokens,
        step_tokens=step_tokens,
        rollout_flop=2 * weights * rollout_tokens,
        # Forward, backward (twice that), and a forward pass under each other policy of the loss.
        step_flop=round((6 + 2 * _policies_recomputed(manifest)) * weights * step_tokens),
    )


def _gathered_bytes(model: ModelSection) -> int:
    """Return the bytes of whole tensors that each rank of several holds during a pass.

    Decoder layers in the policy's precision and the float32 gradient of one, embedding and output
    layer with their gradient in float32.
    """
    width = 4 if model.dtype == "fp32" else 2
    return layer_weights_in(model) * (LAYERS_GATHERED * width + 4) + 8 * embedding_weights_in(model)


def _policies_recomputed(manifest: RunManifest) -> float:
    """Return the forward passes of a step beside that of its updates."""
    grpo = manifest.grpo
    passes = float(manifest.model.dtype != "fp32") + (grpo.loss.kl_coefficient > 0)
    if grpo.loss.importance_cap is not None:  # all minibatches but the first
        passes += 1 - 1 / grpo.updates_per_version
    return passes


def _form_bytes(manifest: RunManifest, version_bytes: int, whole: int) -> int:
    """Return the bytes of the encodings of versions, ``whole`` of which are complete files.

    They also include the next file in download, the first version's encoding, and all patches.
    """
    patches = PATCH_SHARE[manifest.model.dtype] * _forms_kept_max(manifest.shardcast)
    return round((whole + 1 + ENCODING_PAYS + patches) * version_bytes)


def _forms_kept_max(rules: ShardcastSection) -> int:
    return max(rules.versions_kept, rules.full_every)


def _cache_bytes_per_token(model: ModelSection, width: int) -> int:
    heads = number_of(model, "num_attention_heads")
    key_heads = number_of(model, "num_key_value_heads", heads)
    head_size = number_of(model, "head_dim", number_of(model, "hidden_size") // heads)
    return 2 * number_of(model, "num_hidden_layers") * key_heads * head_size * width


def _pass_bytes(model: ModelSection) -> int:
    """Return the number of live values in a pass: a state per layer, and those of one layer."""
    hidden, inner = number_of(model, "hidden_size"), number_of(model, "intermediate_size")
    layers = number_of(model, "num_hidden_layers")
    return PASS_TOKENS * (layers * hidden + 12 * hidden + 4 * inner)


def require_room(manifest: RunManifest, config: NodeConfig, datadir: DataDir) -> None:
    """Raise ``NodeError`` when the quota or the disk is too small for the run.

    Otherwise the node becomes ready, and stops at the first version that does not fit.
    """
    needs = estimate(manifest)
    if needs is None:
        return
    needed = needs.blobs_of(config.roles)
    if config.blob_quota is not None and config.blob_quota < needed:
        raise NodeError(
            f"--blob-quota {bytes_text(config.blob_quota)} is too small for run {manifest.name!r}: "
            f"it needs {bytes_text(needed)} for weights and rollouts; raise it, or leave it out",
            ExitCode.CONFIG,
        )
    needed = needs.disk_of(config.roles)
    here = bytes_under(datadir.blobs) + bytes_under(datadir.weights)
    free = shutil.disk_usage(datadir.root).free
    if free + here < needed:
        raise NodeError(
            f"{bytes_text(free)} free at {datadir.root}, run {manifest.name!r} needs "
            f"{bytes_text(needed - here)} more there; free some, or choose another --data-dir",
            ExitCode.CONFIG,
        )
