"""Scenarios as data: a swarm, its world, and its faults."""
