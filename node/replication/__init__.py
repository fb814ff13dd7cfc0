"""Replication of signed messages: intake, durable log, anti-entropy, direct delivery."""
