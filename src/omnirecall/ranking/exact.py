"""Exact scores: the float64 product in one fixed order, and the key that decides ties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TIE_DECIMALS = 12
KEY_UNIT = 10.0**TIE_DECIMALS
_CHUNK_BYTES = 1 << 19


def ordered_sum(x: Floats) -> Floats:
    """Sum of each row of `x`, shape (n, d), float64 to (n,), in one order that depends on d alone. Overwrites `x`.

    The upper half of a row is added to its lower half until one column is left. Only elementwise additions are
    used, so neither the number of rows, their position, the thread count nor the numpy build changes a bit of the
    result. The error is at most ceil(log2 d) roundings: |sum - exact| <= gamma(ceil(log2 d)) * sum |x| (Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2, pairwise summation).
    """
    width = x.shape[1]
    if width == 0:
        return np.zeros(len(x))
    while width > 16:
        half = (width + 1) // 2
        x[:, : width - half] += x[:, half:width]
        width = half
    # Short rows make slow inner loops: the rest is done on the transpose, with the same additions.
    columns = np.ascontiguousarray(x[:, :width].T)
    while width > 1:
        half = (width + 1) // 2
        columns[: width - half] += columns[half:width]
        width = half
    return columns[0].copy()


def pair_dots(a: Floats, b: Floats) -> Floats:
    """Dot product of row i of `a` with row i of `b` (or with the one row of `b`), shapes (n, d), float64.

    Products of float32, float16 or bfloat16 values are exact in float64 (24 + 24 bits); the sum is `ordered_sum`.
    """
    out = np.empty(len(a))
    step = max(1, _CHUNK_BYTES // (8 * max(1, a.shape[1])))
    shared = len(b) == 1
    for start in range(0, len(a), step):
        right = b if shared else b[start : start + step]
        out[start : start + step] = ordered_sum(a[start : start + step] * right)
    return out


def norms(x: Floats) -> Floats:
    """Euclidean norm of each row of `x`, shape (n, d), float64, from `pair_dots`."""
    return np.sqrt(pair_dots(x, x))


def tie_keys(scores: Floats) -> Floats:
    """Scores, in units of the tie scale, rounded to 12 decimals and held as whole numbers: equal keys are ties."""
    keys: Floats = np.rint(scores * KEY_UNIT)
    return keys + 0.0  # -0.0 becomes 0.0
