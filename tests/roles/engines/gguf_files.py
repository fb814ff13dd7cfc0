"""GGUF files of small models, written as llama.cpp's converter writes them."""

import gguf
import torch
from tokenizers import pre_tokenizers

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FRAMES = ["<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_gguf(path, model, **extra):
    """Write a model with a tokenizer of bytes; ``extra`` are further keys of its architecture."""
    config, name = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, name)
    writer.add_name("A small model")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    for key, value in extra.items():
        if isinstance(value, str):
            writer.add_string(f"{name}.{key.replace('__', '.')}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{name}.{key.replace('__', '.')}", value)
    _add_tokenizer(writer)
    for own, tensor in model.state_dict().items():
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(_name(own), _stored(own, tensor, config).contiguous().numpy())
    if "rope_freqs" in extra:
        writer.add_tensor("rope_freqs.weight", torch.ones(size // 2).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters, "ab", *FRAMES])
    writer.add_token_types([1] * (len(letters) + 1) + [3] * len(FRAMES))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(letters) + 1)
    writer.add_chat_template(TEMPLATE)


def _name(own):
    name, _, kind = own.rpartition(".")
    if name.startswith("model.layers."):
        _, _, layer, part = name.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[name]}.{kind}"


def _stored(own, tensor, config):
    """Return a tensor with the rows of queries and keys as llama.cpp rotates them."""
    if config.model_type != "llama" or not any(part in own for part in ("q_proj", "k_proj")):
        return tensor
    keys = "k_proj" in own
    heads = config.num_key_value_heads if keys else config.num_attention_heads
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)
