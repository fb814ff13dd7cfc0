"""Check of an exported directory in vLLM: ``PYTHON vllm_exported.py DIR`` prints one line of JSON.

It imports nothing of prime-node: users of the directory have vLLM alone.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the model must be readable in this process
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
"""Tensors that vLLM fuses."""


def expected(name, tensors):
    """Return a vLLM parameter from the tensors of the file."""
    for whole, parts in PARTS.items():
        if whole in name:
            return torch.cat([tensors[name.replace(whole, part)] for part in parts])
    return tensors[name]


@torch.inference_mode()
def is_same(model, name, parameter, tensors):
    """Return whether a vLLM parameter equals that of the file, bit for bit."""
    own = expected(name, tensors)
    if parameter.dtype != own.dtype:
        return False
    if parameter.numel():
        return torch.equal(parameter.detach()[: len(own)], own)  # a vocabulary may be padded
    # On a CPU it is packed elsewhere: unit vectors return its columns, and the bias.
    module = model.get_submodule(name.rpartition(".")[0])
    columns = module(torch.eye(own.shape[1], dtype=own.dtype))[0].float()
    bias = name.replace("weight", "bias")
    if getattr(module, "bias", None) is not None:
        return torch.equal(columns, (own.T + expected(bias, tensors)).float())
    return torch.equal(columns, own.T.float())


def read(directory):
    files = directory.glob("*.safetensors")
    tensors = {name: one for path in files for name, one in load_file(path).items()}
    (dtype,) = {one.dtype for one in tensors.values()}
    llm = LLM(
        model=str(directory),
        dtype="float32" if dtype == torch.float32 else "auto",  # auto makes float16 of float32
        skip_tokenizer_init=not (directory / "tokenizer.json").exists(),
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 28,
        max_num_seqs=4,
    )
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    parameters = dict(model.named_parameters())
    differing = [name for name, one in parameters.items() if not is_same(model, name, one, tensors)]
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": one} for one in PROMPTS]
    answers = [list(one.outputs[0].token_ids) for one in llm.generate(prompts, sampling)]
    return {"parameters": len(parameters), "differing": differing, "answers": answers}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read(Path(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    os._exit(0)
