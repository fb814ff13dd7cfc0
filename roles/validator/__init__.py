"""Validator role: verifies claimed rollouts by recomputing them."""
