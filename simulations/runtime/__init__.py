"""Virtual time, the trace of events, and bytes without content."""
