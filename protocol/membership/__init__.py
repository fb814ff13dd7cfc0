"""Members of the swarm: records, admission, measured upload capacity, clocks."""
