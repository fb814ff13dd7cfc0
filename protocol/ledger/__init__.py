"""What became of every rollout: commits, outcomes, versions, and the demand that follows."""
