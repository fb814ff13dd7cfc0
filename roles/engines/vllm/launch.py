"""Start vLLM on the run's model, in this process and with dummy weights."""

import json
import logging
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from protocol.run.recipe import ModelSection, ToplocSection
from roles.engines.architectures.architecture import Config, head_size, key_heads
from roles.engines.architectures.configuration import explicit
from roles.engines.architectures.registry import architecture_of
from roles.engines.files.policy import DTYPES
from roles.engines.vllm.sampling import OPTIONS

SEQUENCES_MAX = 256
"""Sequences decoded together, as in the built-in engine."""

CPU_CACHE_BYTES_MAX = 4 << 30
"""Key-value cache on a CPU; vLLM's default is most of the machine's memory. A guess."""

GPU_MEMORY_SHARE = 0.9
"""Share of a GPU's memory that vLLM takes at the start; its own default."""

_ENVIRONMENT = {
    # vLLM's scheduler runs in this process, so the daemon supervises one process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The V2 runner does not support this interface of logits processors.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Its workers meet on a port; only this machine may reach it.
    "VLLM_HOST_IP": "127.0.0.1",
    # No usage reports to vLLM's authors.
    "VLLM_NO_USAGE_STATS": "1",
    # Its many warnings would hide why a process died.
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def launch(
    model: ModelSection, toploc: ToplocSection, config: Config, device: str, gpus: int
) -> LLMEngine:
    """Start vLLM on ``gpus`` GPUs from ``device`` on, or on the CPU, as it was built for.

    Raises ``ValueError`` if it was built for another kind of device.
    """
    os.environ.update(_ENVIRONMENT)
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it has already read its level
    _place(device, gpus)
    with tempfile.TemporaryDirectory(prefix="prime-node-vllm-") as directory:
        (Path(directory) / "config.json").write_text(json.dumps(_hugging_face(config)))
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=directory,
                skip_tokenizer_init=True,
                load_format="dummy",
                generation_config="vllm",
                dtype={"fp32": "float32", "bf16": "bfloat16"}[toploc.precision],
                hf_overrides={"head_dtype": "float32"} if model.head == "fp32" else {},
                tensor_parallel_size=gpus,
                max_num_seqs=SEQUENCES_MAX,
                logits_processors=["roles.engines.vllm.sampling:ReplayableSampling"],
                worker_extension_cls="roles.engines.vllm.worker.PolicyWorker",
                additional_config={
                    OPTIONS: {"chunk_tokens": toploc.chunk_tokens, "top_k": toploc.top_k}
                },
                # Without asynchronous steps, the token count of a request is its position when a
                # token is drawn.
                async_scheduling=False,
                disable_log_stats=True,
                **_memory(config, toploc),
            )
        )
    if engine.vllm_config.use_v2_model_runner:
        raise RuntimeError(f"vLLM {version('vllm')} uses its V2 model runner")
    engine.collective_rpc("watch_states")
    return engine


def _hugging_face(config: Config) -> dict[str, Any]:
    return explicit(config) | {
        "model_type": config.model_type,
        "architectures": [architecture_of(config.model_type).model_name],
    }


def _place(device: str, gpus: int) -> None:
    """Select vLLM's devices before it enumerates them."""
    on_cpu = current_platform.is_cpu()
    if device != "auto" and (device == "cpu") != on_cpu:
        raise ValueError(f"this vLLM was built for {current_platform.device_type}, not {device}")
    if on_cpu:
        return
    first = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(one) for one in range(first + gpus)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + gpus])


def _memory(config: Config, toploc: ToplocSection) -> dict[str, Any]:
    """Return vLLM's settings for cache memory; its longest sequence is the longest that fits.

    On a CPU it runs eagerly: compilation takes minutes and needs a compiler.
    """
    longest = {"max_model_len": -1}
    if not current_platform.is_cpu():
        return longest | {"gpu_memory_utilization": GPU_MEMORY_SHARE}
    element_bytes = DTYPES[toploc.precision].itemsize
    token_bytes = 2 * config.num_hidden_layers * key_heads(config) * head_size(config)
    blocks = -(-config.max_position_embeddings // _CPU_BLOCK_TOKENS)
    wanted = SEQUENCES_MAX * blocks * _CPU_BLOCK_TOKENS * token_bytes * element_bytes
    cache_bytes = min(wanted, CPU_CACHE_BYTES_MAX)
    return longest | {"kv_cache_memory_bytes": cache_bytes, "enforce_eager": True}


_CPU_BLOCK_TOKENS = 128
"""Block size of vLLM's cache on a CPU."""
