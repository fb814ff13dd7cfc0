"""Synthetic recordings with known statistics."""

import numpy as np

from protocol.rollout.statistics import Recomputed
from protocol.toploc import ChunkResult
from roles.engines.calibration.measurement import ClaimRecording

CHUNK = 32


def drawn(
    name="pair", sequences=64, tokens=256, sigma=0.01, flips=0.02, seed=0, shift=0.0, mantissa=1.0
):
    """Return sequences whose log-probabilities are off by Gaussian errors of ``sigma``.

    ``mantissa``: the median error of the mantissas of each chunk.
    """
    rng = np.random.default_rng(seed)
    claimed, recomputed = [], []
    for _ in range(sequences):
        own = rng.uniform(-3, -1, tokens)
        gaps = np.where(rng.random(tokens) < flips, np.abs(rng.normal(0, sigma, tokens)), 0.0)
        chunks = [
            ChunkResult(int(rng.integers(0, 3)), mantissa * float(rng.uniform(1, 2)), mantissa)
            for _ in range(-(-tokens // CHUNK))
        ]
        claimed.append((own + rng.normal(shift, sigma, tokens)).tolist())
        recomputed.append(Recomputed(chunks, own.tolist(), gaps.tolist()))
    return ClaimRecording(name, claimed, recomputed)


LAYOUT = {"precision": "bf16", "chunk_tokens": CHUNK, "top_k": 128}
