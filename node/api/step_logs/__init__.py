"""Logs of training steps for other tools: JSON lines, TensorBoard event files, W&B.

``base`` is their interface, ``writer`` appends new versions. Each log lies in the data directory
and continues after a restart. Its library is imported when the log is opened.
"""
