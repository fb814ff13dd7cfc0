"""Numbers and series, computed from the trace alone."""
