"""Who we are and whom we are connected to."""
