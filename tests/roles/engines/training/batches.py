"""Batches with something to learn for a tiny model."""

import torch

from roles.ports.engines import TrainingSequence


def batch_of(seed=0, groups=4, size=4):
    """Return sequences of unequal length with different rewards inside each group."""
    torch.manual_seed(seed)
    made = []
    for number in range(groups * size):
        tokens = torch.randint(2, 32, (1 + number % 5,)).tolist()
        logprobs = (-4 * torch.rand(len(tokens))).tolist()
        prompt = (2 + number // size, 3, 4)[: 1 + number % 3]
        made.append(
            TrainingSequence(number // size, prompt, tuple(tokens), tuple(logprobs), number % 2)
        )
    return made


def shapes_of_state(state):
    """Return the shapes of the weights of a whole state."""
    return {name: tuple(tensor.shape) for name, tensor in state.weights.items()}
