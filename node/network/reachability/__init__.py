"""Reachability: dial-backs, as in libp2p's AutoNAT, and the observations that peers publish."""
