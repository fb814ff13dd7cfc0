"""Inference role: generates, scores and proves rollouts with the newest policy."""
