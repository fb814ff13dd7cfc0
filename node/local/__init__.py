"""The local machine: configuration, data directory, logs, hardware, exit codes."""
