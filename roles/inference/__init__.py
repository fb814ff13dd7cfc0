"""The inference role: generates rollouts with the newest policy, scores them, proves them."""
