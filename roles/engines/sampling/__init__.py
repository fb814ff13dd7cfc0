"""Replayable token sampling with seeded Gumbel noise."""
