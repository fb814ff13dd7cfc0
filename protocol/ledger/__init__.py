"""Commits, their outcomes, policy versions, worker statistics and backpressure."""
