"""Qwen2: weights on disk, decode loop, generation and verification."""
