"""Calibration: measure the error between honest engines on a machine, and undetected lies.

``workbench`` generates honest and dishonest sequences and recomputes them. ``proposal`` derives a
recipe's thresholds from the honest ones, ``power`` the tokens until each lie is caught, and
``picture`` plots both. No part of a node.
"""
