"""Virtual time, the trace of events, and bytes that are never written out."""
