"""Keys of ``config.json``, by their effect on the computation."""

from collections.abc import Mapping

COMPUTED = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "tie_word_embeddings",
        "initializer_range",
        "eos_token_id",
    }
)
"""Keys that every architecture uses; each adds its own."""

WITHOUT_EFFECT = frozenset(
    {
        # Origin of the file.
        "transformers_version",
        "transformers_weights",
        "torch_dtype",
        "dtype",
        "_name_or_path",
        "name_or_path",
        "_model_name_or_path",
        "_commit_hash",
        "_auto_class",
        "tokenizer_class",
        "model_name",
        "unsloth_version",
        "unsloth_fixed",
        "is_llama_config",
        "transformers.js_config",
        "trust_remote_code",
        "license",
        # Call options of Hugging Face's module, which the engines set themselves.
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "torchscript",
        "use_bfloat16",
        "pretraining_tp",
        "tf_legacy_loss",
        "is_decoder",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "_experts_implementation",
        "_experts_implementation_internal",
        "experts_implementation",
        "_flash_attn_2_enabled",
        "use_flash_attn",
        "use_flash_attention",
        "use_flash_attention_2",
        "flash_attention",
        "gradient_checkpointing",
        "use_gradient_checkpointing",
        "neftune_noise_alpha",
        # Copies of the maximum positions, which Hugging Face does not read.
        "max_sequence_length",
        "max_seq_length",
        "max_seq_len",
        "model_max_length",
        "seq_length",
        # Tokens that the engines receive elsewhere, or that end nothing.
        "bos_token_id",
        "pad_token_id",
        "sep_token_id",
        "unk_token_id",
        "cls_token_id",
        "mask_token_id",
        "decoder_start_token_id",
        "prefix",
        # Tasks other than next-token prediction.
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "classifier_dropout",
        # Parameters of ``generate``; the manifest defines sampling.
        "assistant_confidence_threshold",
        "assistant_lookbehind",
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "suppress_tokens",
        "target_lookbehind",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    }
)

ONLY_AS: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),  # synonyms
    "attention_dropout": (0, None),
    "attn_pdrop": (0, None),
    "embd_pdrop": (0, None),
    "hidden_dropout": (0, None),
    "resid_pdrop": (0, None),
    "layerdrop": (0, None),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "use_mrope": (False, None),
    "quantization_config": (None, {}),
    "compression_config": (None, {}),
    "per_layer_config": (None, {}),
    "auto_map": (None, {}),
    "chunk_size_feed_forward": (0, None),
    "is_encoder_decoder": (False, None),
    "tie_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
}
"""Keys without effect while they have one of these values."""

_DEQUANTISE = (
    "use the model in bf16 or float32 that it was made from, or load it with transformers and "
    "save its dequantised weights"
)

ADVICE: Mapping[str, str] = {
    "architectures": "use the model that generates text, whose name ends with ForCausalLM",
    "attention_dropout": "set it to 0, because training with dropout cannot be repeated",
    "auto_map": "engines run no code of a directory; remove the key if Hugging Face's own class "
    "computes the same",
    "compression_config": _DEQUANTISE,
    "quantization_config": _DEQUANTISE,
}
"""Advice for a rejected key; for other keys the error lists the supported values."""

WINDOWS = frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})
"""Keys from which Hugging Face derives each layer's kind of attention."""
