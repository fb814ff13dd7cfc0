"""Who may be drawn in an epoch, and the randomness that draws them."""
