"""The simulated network: machines, lines, connections, streams, and what is broken."""
