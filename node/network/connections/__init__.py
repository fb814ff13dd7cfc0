"""Connection management: dial, keep, prune and ban peers."""
