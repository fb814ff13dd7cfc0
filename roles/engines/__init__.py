"""The engines that compute for real: dense decoders on torch.

``architectures`` says what a model computes, ``builtin`` generates, verifies and reads policies;
``training`` learns; ``published`` reads what others trained; ``factory`` makes the engine that a
role needs from the run manifest, and imports torch only then.
"""
