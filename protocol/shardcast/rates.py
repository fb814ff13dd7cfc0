"""Rates in classes: what is measured twice seldom agrees to the byte, and need not.

Class *c* holds the rates from ``2 ** (c / 2)`` bytes a second on, up to the next class: steps of
1.41. Coarser ones cost balance, finer ones change with every measurement.
"""

from math import isqrt

RATE_CLASS_MAX = 106
"""Of 2^53 bytes a second, the largest number of a message."""


def rate_class(bytes_per_second: int) -> int:
    """Return the class of a rate; 0 for one byte a second and for none."""
    return (max(1, bytes_per_second) ** 2).bit_length() - 1


def rate_of_class(number: int) -> int:
    """Return the bytes a second from which on a rate is in a class, rounded up."""
    root = isqrt(1 << number)
    return root if root * root == 1 << number else root + 1
