"""Scenarios: a swarm, its world, and what goes wrong, as data."""
