"""Files of models: safetensors, tokenizers, policies."""
