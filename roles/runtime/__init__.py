"""Runtime that all roles share: context, retries, scoring, metrics."""
