"""The simulated network: machines, access lines, connections, streams, and their faults."""
