"""The trainer role: learns from verified rollouts and publishes policies."""
