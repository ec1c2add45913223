"""The result: counts per relevant candidate and the top of each ranked list."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ranks:
    """Where each relevant candidate stands in its query's ranking.

    `offsets` (n_queries + 1): the pairs of query i are `offsets[i]:offsets[i + 1]`, in the order given.
    `greater`, `tied` (one per pair): other candidates of the pool with a higher, and with an equal, score.
    `scores` (one per pair): exact float64 score of the relevant candidate: cosine, dot product or mean MaxSim.
    `top_ids` (n_queries, top_k): candidate rows, best first, padded with -1; `top_scores` padded with NaN.
    `pool_size` (n_queries): candidates ranked, after pool and exclusions.
    """

    offsets: Ints
    greater: Ints
    tied: Ints
    scores: Floats
    top_ids: Ints
    top_scores: Floats
    pool_size: Ints
