"""Rollouts: assignment, body, audit, and the statistics of honest engines."""
