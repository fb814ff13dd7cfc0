"""Reachability: addresses that peers observe, and whether they can dial us."""
