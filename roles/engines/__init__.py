"""The engines that compute for real: Qwen2 weights on torch.

``qwen2`` generates, verifies and reads policies; ``training`` learns; ``factory`` makes the engine
that a role needs from the run manifest, and imports torch only then.
"""
