"""An exported directory in vLLM: ``PYTHON vllm_exported.py DIR`` prints one line of JSON.

Nothing of the tree is imported: a directory is for people who have vLLM alone.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the model is in this process, where it can be read
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

import torch
from safetensors.torch import load_file
from vllm import LLM, SamplingParams

PROMPTS = [[3, 4, 5], [7, 9, 11, 13, 2], [20]]

PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Tensors that vLLM keeps as one."""


def expected(name, tensors):
    """Return a parameter of vLLM's from the tensors of the file."""
    for whole, parts in PARTS.items():
        if whole in name:
            return torch.cat([tensors[name.replace(whole, part)] for part in parts])
    return tensors[name]


def read(directory):
    llm = LLM(
        model=str(directory),
        dtype="auto",
        skip_tokenizer_init=not (directory / "tokenizer.json").exists(),
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 28,
        max_num_seqs=4,
    )
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    files = directory.glob("*.safetensors")
    tensors = {name: one for path in files for name, one in load_file(path).items()}
    differing, count = [], 0
    for name, parameter in model.named_parameters():
        count += 1
        own = expected(name, tensors)
        same = parameter.shape[1:] == own.shape[1:] and parameter.dtype == own.dtype
        # The vocabulary may be padded.
        if not (same and torch.equal(parameter.detach()[: len(own)], own)):
            differing.append(f"{name} {tuple(parameter.shape)} {parameter.dtype}")
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": one} for one in PROMPTS]
    answers = [list(one.outputs[0].token_ids) for one in llm.generate(prompts, sampling)]
    return {"parameters": count, "differing": differing, "answers": answers}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read(Path(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    os._exit(0)
