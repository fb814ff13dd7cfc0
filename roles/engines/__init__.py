"""Engines that generate, verify and train dense decoders on torch.

``architectures`` defines the model, ``builtin`` generates and verifies, ``vllm`` generates,
``training`` trains, ``bootstrap`` imports and exports models. ``factory`` makes the engine that a
role needs from the run manifest and imports torch only then.
"""
