"""Life of a node's process: start, join, signals, drain, and what it reports to its supervisor."""
