"""Number of weights of a model, from its manifest section and without torch.

A daemon, which imports no engine, needs it before it joins a run.
"""

from protocol.run.recipe import ModelSection


def weights_in(model: ModelSection) -> int:
    """Return the number of weights of a model section.

    Raises ``ValueError`` for a configuration that lacks a size; engines reject it, naming the key.
    """
    hidden, layers = number_of(model, "hidden_size"), number_of(model, "num_hidden_layers")
    return embedding_weights_in(model) + layers * layer_weights_in(model) + hidden


def embedding_weights_in(model: ModelSection) -> int:
    """Return the weights of embedding and output layer, which may be the same ones."""
    tied = model.config.get("tie_word_embeddings", model.architecture == "smollm3")
    return model.vocabulary_size * number_of(model, "hidden_size") * (1 if tied else 2)


def layer_weights_in(model: ModelSection) -> int:
    """Return the weights of a decoder layer."""
    hidden, inner = number_of(model, "hidden_size"), number_of(model, "intermediate_size")
    heads = number_of(model, "num_attention_heads")
    head_size = number_of(model, "head_dim", _head_size(model, hidden, heads))
    queries = heads * head_size
    keys = number_of(model, "num_key_value_heads", heads) * head_size
    attention = 2 * hidden * (queries + keys)
    if model.architecture == "qwen2":
        attention += queries + 2 * keys
    elif model.config.get("attention_bias"):
        attention += queries + 2 * keys + hidden
    if model.architecture == "qwen3":
        attention += 2 * head_size  # the norms of queries and of keys
    if model.architecture == "olmo2":
        attention += queries + keys  # the same, each over all heads
    mlp = 3 * hidden * inner
    if model.config.get("mlp_bias"):
        mlp += 2 * inner + hidden
    return attention + mlp + 2 * hidden


def number_of(model: ModelSection, key: str, default: int | None = None) -> int:
    """Return an integer of a configuration; raises ``ValueError`` for another value."""
    value = model.config.get(key) or default
    if not isinstance(value, int):
        raise ValueError(f"model.config.{key} must be an integer")  # noqa: TRY004 (a value, ours)
    return value


def _head_size(model: ModelSection, hidden: int, heads: int) -> int:
    """Return Hugging Face's default."""
    return 128 if model.architecture == "qwen3" else hidden // heads
