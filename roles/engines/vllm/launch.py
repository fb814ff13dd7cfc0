"""Starts vLLM on the run's model: in this process, with weights that mean nothing yet."""

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
"""Decoded together, as by the built-in engine."""

CPU_CACHE_BYTES_MAX = 4 << 30
"""Of keys and values on a CPU; vLLM's own choice would be most of the machine's memory. A guess."""

GPU_MEMORY_SHARE = 0.9
"""Of a GPU's memory, which vLLM takes at the start; its own default."""

_ENVIRONMENT = {
    # vLLM's scheduler runs in this process: the daemon supervises one process, and sees it die.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The other runner takes no logits processors of this interface.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Its workers meet on a port; nobody else has to reach it.
    "VLLM_HOST_IP": "127.0.0.1",
    # It would tell its makers what runs here.
    "VLLM_NO_USAGE_STATS": "1",
    # It warns of much that is meant so, and the last words of a process should say why it died.
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def launch(
    model: ModelSection, toploc: ToplocSection, config: Config, device: str, gpus: int
) -> LLMEngine:
    """Return vLLM's engine on ``gpus`` GPUs from ``device`` on; or on the CPU, as it was built for.

    Raises ``ValueError`` when it was built for something else than ``device``.
    """
    os.environ.update(_ENVIRONMENT)
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it has read its level already
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
                # Tokens are drawn one step after the other: with a step ahead their number in
                # a request would not be their position.
                async_scheduling=False,
                disable_log_stats=True,
                **_memory(config, toploc),
            )
        )
    if engine.vllm_config.use_v2_model_runner:
        raise RuntimeError(f"vLLM {version('vllm')} takes its other model runner")
    engine.collective_rpc("watch_states")
    return engine


def _hugging_face(config: Config) -> dict[str, Any]:
    """Return the ``config.json`` of a model."""
    return explicit(config) | {
        "model_type": config.model_type,
        "architectures": [architecture_of(config.model_type).model.__name__],
    }


def _place(device: str, gpus: int) -> None:
    """Have vLLM find the devices that it shall use, before it looks for any."""
    on_cpu = current_platform.is_cpu()
    if device != "auto" and (device == "cpu") != on_cpu:
        raise ValueError(f"this vLLM computes on {current_platform.device_type}, not on {device}")
    if on_cpu:
        return
    first = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(one) for one in range(first + gpus)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + gpus])


def _memory(config: Config, toploc: ToplocSection) -> dict[str, Any]:
    """Return how much vLLM may take for keys and values; its longest sequence is what fits.

    On a CPU it computes step by step as it is written: compiling takes minutes, and a compiler.
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
"""vLLM's unit of its cache on a CPU."""
