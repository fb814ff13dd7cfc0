"""The rewards of the rollouts that evaluate versions, as every node sums them up."""
