"""A whole swarm in one process: machines, their daemons, churn and faults."""
