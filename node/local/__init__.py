"""This machine: configuration, data directory, logs, hardware, and how the process ends."""
