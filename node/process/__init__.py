"""Process lifecycle: start, join, signals, drain and service manager notifications."""
