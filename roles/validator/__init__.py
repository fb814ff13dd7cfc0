"""The validator role: checks claimed rollouts by recomputing them."""
