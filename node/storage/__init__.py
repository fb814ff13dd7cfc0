"""What survives a restart: content-addressed blobs in files, small state in SQLite."""
