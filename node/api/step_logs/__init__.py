"""Logs of training steps for other tools: JSON lines, TensorBoard event files, W&B.

``base`` is their interface, ``writer`` keeps them up to date. Each lies in the data directory and
goes on after a restart where it ended. The libraries are imported when a log is opened.
"""
