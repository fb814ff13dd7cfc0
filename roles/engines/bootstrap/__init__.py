"""Initial models: import, export, and cold start."""
