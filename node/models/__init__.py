"""Trained models: the versions that a node holds, exported, chatted with and evaluated, offline."""
