"""GRPO on one device: objective, batches, optimiser, durable state."""
