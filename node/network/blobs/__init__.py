"""Blob protocol: byte ranges of content-addressed blobs between peers."""
