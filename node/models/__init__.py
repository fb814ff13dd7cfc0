"""Offline use of the versions that a node holds: export, chat and evaluation."""
