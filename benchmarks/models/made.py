"""Generated Hugging Face directories with random weights: like published ones, or to be rejected.

Hugging Face writes each directory. An ``edit`` then adds what its current writer no longer writes:
old spellings, redundant tensors, and everything that a run must reject.
"""

import json
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from protocol.run.recipe import Recipe
from roles.engines.architectures.registry import ARCHITECTURES
from roles.engines.bootstrap.small_model import make_tokenizer

Edit = Callable[[Path], None]

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
"""As wide as the text recipe's model: of 64 values in a proof, none is near zero."""

TOKENS = {"pad_token_id": None, "bos_token_id": None}
"""Some defaults of Hugging Face exceed a small vocabulary."""

CHARACTERS = 32
"""Vocabulary of the task over characters."""

DEVIATION = 0.1
"""Standard deviation of all weights except norms, which are around 1. Logits then deviate by 1;
with Hugging Face's initial weights all tokens would be equally likely."""

SEED = 1
SHARD_BYTES = 150_000
"""Shard size of a directory in several files: about a third of its weights."""

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.1,
    "logits_scaling": 2.0,
}

DATED_TEMPLATE = (
    "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %B %Y') + '<|im_end|>\n' }}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Template that reads the date, as Llama's do."""

TEMPLATE = "chat_template.jinja"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
NORM = "model.norm.weight"


@dataclass(frozen=True)
class Directory:
    """One directory; if ``refused`` is set, the error must contain it."""

    name: str
    architecture: str
    features: str
    config: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    shard_bytes: int = 1 << 30
    in_text: bool = False
    ends: tuple[int, ...] = (1,)
    edits: tuple[Edit, ...] = ()
    refused: str = ""

    def write(self, path: Path, recipe: Recipe) -> None:
        """Write it; ``recipe`` is that of its task, whose texts train the tokenizer."""
        torch.manual_seed(SEED)
        made = ARCHITECTURES[self.architecture]
        vocabulary = {"vocab_size": recipe.model.vocabulary_size if self.in_text else CHARACTERS}
        tokens = {**TOKENS, "eos_token_id": self.ends[0]}
        config = deepcopy({**SIZES, **vocabulary, **tokens, **self.config})
        model = made.model(made.config(**config)).to(self.dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(1.0 if "norm" in name else 0.0, DEVIATION)
        model.generation_config.eos_token_id = list(self.ends)
        model.save_pretrained(path, max_shard_size=self.shard_bytes)
        if self.in_text:
            make_tokenizer(recipe, SEED).save_pretrained(path)
        for edit in self.edits:
            edit(path)


# Edits


def says(**values: Any) -> Edit:
    """Return an edit that adds values to ``config.json``."""

    def edit(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **values}))

    return edit


def keeps(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Edit:
    """Return an edit that replaces the tensors of a directory with one file."""

    def edit(path: Path) -> None:
        save_file(change(load_file(path / WEIGHTS)), path / WEIGHTS, {"format": "pt"})

    return edit


def has_angles(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the rotary angles that old files store."""
    angles = torch.arange(SIZES["hidden_size"] / SIZES["num_attention_heads"] / 2)
    return {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": angles}


def says_in_old_words(path: Path) -> None:
    """Spell the scaling of positions as before ``rope_parameters``."""
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    words = {"rope_theta": theta, "rope_scaling": {"type": kind, **rope}, "torch_dtype": "float32"}
    (path / "config.json").write_text(json.dumps({**config, **words}))


def asks_the_day(path: Path) -> None:
    """Add a chat template whose text depends on the date."""
    (path / TEMPLATE).write_text(DATED_TEMPLATE)


def lacks(*names: str) -> Edit:
    """Return an edit that deletes files."""

    def edit(path: Path) -> None:
        for name in names:
            (path / name).unlink()

    return edit


def is_pickled(path: Path) -> None:
    """Store the weights only as a pickle."""
    torch.save(load_file(path / WEIGHTS), path / "pytorch_model.bin")
    (path / WEIGHTS).unlink()


def is_truncated(path: Path) -> None:
    """Drop the last byte of the weights."""
    (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-1])


def lacks_a_file(path: Path) -> None:
    """Delete one of the index's files."""
    max(path.glob("model-*.safetensors")).unlink()


def names_files_elsewhere(path: Path) -> None:
    """Make the index name a file outside the directory."""
    index = json.loads((path / INDEX).read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], "../elsewhere.safetensors")
    (path / INDEX).write_text(json.dumps(index))


# Directories

PLAIN = Directory("qwen2-plain", "qwen2", "head of its own")
CHAT = Directory(
    "qwen2-chat",
    "qwen2",
    "BPE and chat template; tied head; 2 end tokens",
    {"tie_word_embeddings": True},
    in_text=True,
    ends=(2, 0),
)
SHARDED = Directory(
    "qwen3-sharded",
    "qwen3",
    "several files in bf16; biases; heads of 64; one key head",
    {"head_dim": 64, "attention_bias": True, "num_key_value_heads": 1},
    dtype=torch.bfloat16,
    shard_bytes=SHARD_BYTES,
)
"""Bases of the directories that must be rejected."""

TAKEN = (
    PLAIN,
    Directory(
        "qwen2-tied",
        "qwen2",
        "tied head, stored in bf16",
        {"tie_word_embeddings": True},
        dtype=torch.bfloat16,
    ),
    Directory(
        "qwen2-tied-stored",
        "qwen2",
        "tied head that is stored, too; a window that no layer has",
        {"tie_word_embeddings": True},
        edits=(
            says(use_sliding_window=True, sliding_window=8, max_window_layers=2),
            keeps(lambda own: {**own, HEAD: own[EMBEDDING].clone()}),
        ),
    ),
    Directory(
        "qwen2-yarn",
        "qwen2",
        "YaRN; heads of 48; 3 end tokens",
        {"head_dim": 48, "rope_parameters": YARN},
        ends=(1, 7, 30),
    ),
    CHAT,
    Directory("qwen3-plain", "qwen3", "heads of 32", {"head_dim": 32}),
    SHARDED,
    Directory(
        "qwen3-chat",
        "qwen3",
        "BPE and chat template; tied head; heads of 48; several files; 2 end tokens",
        {"head_dim": 48, "tie_word_embeddings": True},
        shard_bytes=SHARD_BYTES,
        in_text=True,
        ends=(2, 0),
    ),
    Directory(
        "qwen3-yarn-chat",
        "qwen3",
        "BPE and chat template; YaRN with mscale; heads of 48",
        {
            "head_dim": 48,
            "rope_parameters": YARN
            | {"mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16.0, "rope_theta": 1e6},
        },
        in_text=True,
        ends=(2,),
    ),
    Directory(
        "llama-plain",
        "llama",
        "as many key heads as heads; angles of positions stored",
        {"num_key_value_heads": None},
        edits=(keeps(has_angles),),
    ),
    Directory(
        "llama3",
        "llama",
        "Llama 3's positions; biases everywhere; several files; 3 end tokens",
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
        shard_bytes=SHARD_BYTES,
        ends=(1, 8, 9),
    ),
    Directory(
        "llama-linear",
        "llama",
        "linear positions; tied head; stored in fp16",
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        dtype=torch.float16,
    ),
    Directory(
        "llama-yarn-old",
        "llama",
        "YaRN in the words of old files; heads of 40",
        {"head_dim": 40, "rope_parameters": YARN | {"rope_theta": 5e5}},
        edits=(says_in_old_words,),
    ),
    Directory(
        "llama3-chat",
        "llama",
        "BPE and a chat template that asks what day it is; Llama 3's positions; 2 end tokens",
        {"rope_parameters": LLAMA3},
        in_text=True,
        ends=(2, 0),
        edits=(asks_the_day,),
    ),
    Directory(
        "mistral-v3",
        "mistral",
        "no window; heads of 48",
        {"sliding_window": None, "head_dim": 48},
        dtype=torch.bfloat16,
    ),
    Directory(
        "mistral-v1",
        "mistral",
        "a window that no sequence leaves; BPE and chat template; 2 end tokens",
        {"sliding_window": SIZES["max_position_embeddings"]},
        in_text=True,
        ends=(2, 0),
    ),
    Directory(
        "smollm3",
        "smollm3",
        "every second layer without positions; tied head; BPE and chat template",
        {"no_rope_layer_interval": 2},
        in_text=True,
        ends=(2, 0),
    ),
    Directory(
        "granite",
        "granite",
        "embedding, residual, attention and logits scaled; tied head; several files",
        GRANITE | {"tie_word_embeddings": True},
        shard_bytes=SHARD_BYTES,
        ends=(1, 7),
    ),
    Directory(
        "olmo2",
        "olmo2",
        "norms behind, and over all queries and keys; as many key heads as heads",
        {"num_key_value_heads": None, "rope_theta": 5e5},
    ),
)


def _cousin(name: str, refused: str, *edits: Edit, of: Directory = PLAIN) -> Directory:
    return replace(of, name=name, edits=(*of.edits, *edits), refused=refused)


def _rope(**values: Any) -> Edit:
    return says(rope_parameters={"rope_theta": 10_000.0, **values})


REFUSED = (
    _cousin("rope-dynamic", "dynamic", _rope(rope_type="dynamic", factor=2.0)),
    _cousin(
        "rope-longrope",
        "longrope",
        _rope(rope_type="longrope", short_factor=[1.0] * 16, long_factor=[2.0] * 16),
    ),
    _cousin("rope-partial", "partial_rotary_factor", says(partial_rotary_factor=0.5)),
    _cousin(
        "window",
        "sliding_window",
        says(
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=1,
            layer_types=["full_attention", "sliding_attention"],
        ),
    ),
    replace(
        PLAIN,
        name="window-of-all-layers",
        architecture="mistral",
        config={"sliding_window": 8},
        refused="config.sliding_window",
    ),
    _cousin("sinks", "attention sinks", says(model_type="gpt_oss")),
    _cousin("linear-attention", "linear attention", says(model_type="qwen3_next")),
    _cousin("soft-capping", "soft-capping", says(model_type="gemma2")),
    _cousin("soft-capping-disguised", "attn_logit_softcapping", says(attn_logit_softcapping=50.0)),
    _cousin("chunked", "chunked attention", says(model_type="llama4_text")),
    _cousin("latent", "multi-head latent attention", says(model_type="deepseek_v3")),
    _cousin("alibi", "ALiBi", says(model_type="bloom")),
    _cousin("experts", "num_experts", says(num_experts=8, num_experts_per_tok=2)),
    _cousin("mixture", "qwen3_moe", says(model_type="qwen3_moe")),
    _cousin("own-code", "auto_map", says(auto_map={"AutoModelForCausalLM": "modeling.Model"})),
    _cousin(
        "quantised",
        "quantization_config",
        says(quantization_config={"quant_method": "awq", "bits": 4}),
    ),
    _cousin("nested", "text_config", says(text_config={"hidden_size": 128})),
    _cousin("vision", "qwen2_5_vl", says(model_type="qwen2_5_vl")),
    _cousin("classifier", "architectures", says(architectures=["Qwen2ForSequenceClassification"])),
    _cousin("dropout", "attention_dropout", says(attention_dropout=0.1)),
    _cousin("activation", "hidden_act", says(hidden_act="gelu")),
    _cousin("endless", "eos_token_id", says(eos_token_id=None), lacks("generation_config.json")),
    _cousin("pickled", WEIGHTS, is_pickled),
    _cousin(
        "head-differs",
        "lm_head.weight differs",
        says(tie_word_embeddings=True),
    ),
    _cousin(
        "tensor-missing",
        "model.norm.weight is missing",
        keeps(lambda own: {name: own[name] for name in own if name != NORM}),
    ),
    _cousin(
        "tensor-quantised",
        "torch.float8_e4m3fn",
        keeps(lambda own: {**own, HEAD: own[HEAD].to(torch.float8_e4m3fn)}),
    ),
    _cousin(
        "not-finite",
        "not finite in 2 of 128",
        keeps(lambda own: {**own, NORM: own[NORM].index_fill(0, torch.tensor([1, 5]), math.nan)}),
    ),
    _cousin("file-truncated", WEIGHTS, is_truncated),
    _cousin("file-missing", "model-0", lacks_a_file, of=SHARDED),
    _cousin("file-elsewhere", INDEX, names_files_elsewhere, of=SHARDED),
    _cousin("no-tokenizer", "no tokenizer", lacks("tokenizer.json"), of=CHAT),
    _cousin("no-template", "no chat template", lacks(TEMPLATE), of=CHAT),
    _cousin(
        "tokens-too-many",
        "tokens, the model 300",
        of=replace(CHAT, config={**CHAT.config, "vocab_size": 300}),
    ),
    _cousin("other-end", "token 1", of=replace(PLAIN, ends=(5,))),
)
