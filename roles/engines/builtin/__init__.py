"""The built-in engines: decode loop, generation, verification, and policies on disk."""
