"""Terminal output: tables and progress maps."""
