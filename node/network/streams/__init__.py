"""What every stream protocol shares: frames, deadlines, bounds and names."""
