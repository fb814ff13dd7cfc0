"""Colours of the testnet's views."""

ACCENT = "#56b6c2"
GOOD = "#98c379"
WARN = "#e5c07b"
BAD = "#e06c75"
DIM = "grey50"
FRAME = "grey30"
