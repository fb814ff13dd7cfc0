"""Arithmetic modulo 65497 on many polynomials at once.

65497, from the published proof format, is above every finite bf16 bit pattern (at most 0xFF7F =
65407). A product of two elements plus a third stays below 2**32, so all of it is exact in
``uint32``. numpy vectorises the division of ``uint32`` by a constant; ``%`` is not vectorised and
four times slower (measured, numpy 2.4).

Arrays hold one polynomial per row. Internally, rows and columns are swapped, so that every step of
a recurrence over the degree runs over contiguous memory.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.uint32]
"""Field elements, each below ``PRIME``."""

PRIME = 65497
"""Modulus of every polynomial, independent of a proof's index modulus (toploc 0.1.6)."""

_PRIME = np.uint32(PRIME)

_PRIMITIVE_ROOT = 7
"""Generator of all non-zero elements: the order divides 2**3 * 3 * 2729."""


def interpolate(points: Elements, values: Elements, counts: NDArray[np.int64]) -> Elements:
    """Return the ascending coefficients of the polynomials through ``points`` and ``values``.

    All arrays are ``[rows, k]``. Row ``r`` uses only its first ``counts[r]`` points, which must be
    distinct and at least one; its coefficients from ``counts[r]`` upward are zero. Newton's divided
    difference ``i`` depends only on the points up to ``i``, so values beyond the count are
    arbitrary.
    """
    nodes = np.ascontiguousarray(points.T)
    differences = _divided_differences(nodes, values.T.copy(order="C"))
    unused = np.arange(len(nodes))[:, None] >= counts
    differences[unused] = 0
    return np.ascontiguousarray(_newton_to_monomial(nodes, differences).T)


def evaluate(coefficients: Elements, points: Elements) -> Elements:
    """Return the value of each row's polynomial at each of its points, by Horner's rule.

    ``coefficients[rows, k]`` ascending, ``points[rows, n]``; the result is ``[rows, n]``.
    """
    result = np.zeros_like(points)
    for column in coefficients.T[::-1]:
        result *= points
        result += column[:, None]
        _reduce(result)
    return result


@cache
def inverses() -> Elements:
    """Return the table of ``PRIME`` multiplicative inverses; that of zero is zero.

    The inverse of ``-d`` is minus the inverse of ``d``. A negative index, which numpy counts from
    the end, therefore finds the right entry too.
    """
    powers = np.ones(1, dtype=np.uint32)
    while len(powers) < PRIME - 1:
        step = np.uint32(pow(_PRIMITIVE_ROOT, len(powers), PRIME))
        powers = np.concatenate((powers, _reduce(powers * step)))
    powers = powers[: PRIME - 1]
    table = np.zeros(PRIME, dtype=np.uint32)
    table[powers] = powers[-np.arange(PRIME - 1)]
    return table


def _divided_differences(nodes: Elements, values: Elements) -> Elements:
    """Return Newton's coefficients, ``[k, rows]``, in the place of ``values``."""
    table = inverses()
    signed = nodes.astype(np.intp)
    result = values
    for order in range(1, len(nodes)):
        # Adding the prime keeps the difference above zero; a value above the prime still fits,
        # because it is reduced before the product.
        steps = _reduce(result[order:] + _PRIME - result[order - 1 : -1])
        steps *= table.take(signed[order:] - signed[:-order], mode="wrap")
        result[order:] = _reduce(steps)
    return result


def _newton_to_monomial(nodes: Elements, differences: Elements) -> Elements:
    """Expand ``d0 + (x - x0) * (d1 + (x - x1) * (...))`` into powers of x, ``[k, rows]``."""
    degree_max = len(nodes) - 1
    negated = _PRIME - nodes
    result = np.zeros_like(differences)
    result[0] = differences[degree_max]
    for index in range(degree_max - 1, -1, -1):
        used = degree_max - index
        product = result[: used + 1] * negated[index]
        product[1:] += result[:used]
        product[0] += differences[index]
        result[: used + 1] = _reduce(product)
    return result


def _reduce(values: Elements) -> Elements:
    """Replace ``values`` by their remainders modulo the prime, in place, and return them."""
    quotients = values // _PRIME
    quotients *= _PRIME
    values -= quotients
    return values
