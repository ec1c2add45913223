"""Exact scores: the float64 product in one fixed order, and the key that decides ties."""

from __future__ import annotations

import numpy as np

from omnirecall.ranking.inputs import Array, Floats, Ints

TIE_DECIMALS = 12
KEY_UNIT = 10.0**TIE_DECIMALS
_CHUNK_BYTES = 1 << 19
_SHORT = 16


def ordered_sum(x: Floats) -> Floats:
    """Sum of each row of `x`, shape (n, d), float64 to (n,), in one order that depends on d alone. Overwrites `x`.

    The upper half of a row is added to its lower half until one column is left. Only elementwise additions are
    used, so neither the number of rows, their position, the thread count nor the numpy build changes a bit of the
    result. The error is that of ceil(log2 d) roundings: |sum - true| <= gamma(ceil(log2 d)) * sum |x| (Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2, pairwise summation).
    """
    width = x.shape[1]
    while width > _SHORT:
        half = (width + 1) // 2
        x[:, : width - half] += x[:, half:width]
        width = half
    # Short rows make slow inner loops: the rest is done on the transpose, with the same additions.
    columns = np.ascontiguousarray(x[:, :width].T)
    while width > 1:
        half = (width + 1) // 2
        columns[: width - half] += columns[half:width]
        width = half
    return columns[0].copy() if width else np.zeros(len(x))


def pair_dots(a: Array, b: Array, a_rows: Ints | None = None, b_rows: Ints | None = None) -> Floats:
    """Dot products, float64 (n,): row `a_rows[i]` of `a` with row `b_rows[i]` of `b`; all rows in turn where None.

    Products of two float32, float16 or bfloat16 values are exact in float64; the sum is `ordered_sum`.
    `b` may be one row, which then meets every row of `a`. Extra memory: about 1 MB.
    """
    n = len(a) if a_rows is None else len(a_rows)
    out = np.empty(n)
    step = max(1, _CHUNK_BYTES // (8 * max(1, a.shape[1])))
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        left = a[part] if a_rows is None else a[a_rows[part]]
        right = b if len(b) == 1 else (b[part] if b_rows is None else b[b_rows[part]])
        out[part] = ordered_sum(np.multiply(left, right, dtype=np.float64))
    return out


def norms(x: Array) -> Floats:
    """Euclidean norm of each row of `x`, shape (n, d), float64, from `pair_dots`."""
    root: Floats = np.sqrt(pair_dots(x, x))
    return root


def tie_keys(scores: Floats) -> Floats:
    """Scores, in units of the tie scale, rounded to 12 decimals and held as whole numbers: equal keys are ties."""
    keys: Floats = np.rint(scores * KEY_UNIT)
    return keys + 0.0  # -0.0 becomes 0.0


def definition_error(dimension: int) -> float:
    """How far a computed score and its key's borders may lie from the real numbers, in units of the norms' product.

    ceil(log2 d) roundings of the sum, three of the norms and quotient, and the rounding of the scaled key.
    """
    return (max(1, int(dimension - 1).bit_length()) * 2 + 12) * 2.0**-53
