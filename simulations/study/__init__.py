"""Single runs, sweeps, and regression seeds: a plan in, numbers out."""
