"""Trainer role: learns from verified rollouts and publishes policies."""
