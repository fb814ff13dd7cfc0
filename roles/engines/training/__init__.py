"""GRPO training on one device: objective, batches, optimizer, checkpoints."""
