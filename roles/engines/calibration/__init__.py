"""Calibration: how far honest engines are apart on a machine, and what lies then go unnoticed.

``workbench`` generates honest and dishonest sequences and recomputes them, ``proposal`` turns the
honest ones into the thresholds of a recipe, ``power`` tells how many tokens each lie takes until
they catch it, and ``picture`` draws both. Nothing here is part of a node.
"""
