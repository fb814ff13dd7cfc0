"""Results of evaluated versions, and the confidence intervals of evaluations."""
