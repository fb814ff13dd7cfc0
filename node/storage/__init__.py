"""Durable storage: content-addressed blobs in files, small state in SQLite."""
