"""Shared by all roles: context, retries, scoring, metrics."""
