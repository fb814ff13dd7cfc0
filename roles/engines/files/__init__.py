"""Model files: safetensors, tokenizers, policies."""
