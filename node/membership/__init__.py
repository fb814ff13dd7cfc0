"""Membership of this node in the run: admission, announced record, and guard of its key."""
