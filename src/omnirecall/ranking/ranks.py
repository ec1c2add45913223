"""The result: counts per relevant candidate and the top of each ranked list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from omnirecall.ranking.inputs import Array, Floats, Ints, RankingError


@dataclass(frozen=True)
class PairScores:
    """Exact scores of each query's relevant candidates, known before their ranks are.

    `offsets` (n_queries + 1), `rows` and `scores` (one per pair, in the order given); `scale` (n_queries): the score
    that counts as 1 where ties are decided (1 under cosine). `candidates`: how many there are.
    """

    offsets: Ints
    rows: Ints
    scores: Floats
    scale: Floats
    candidates: int


@dataclass(frozen=True)
class Ranks:
    """Where each relevant candidate stands in its query's ranking.

    `offsets` (n_queries + 1): the pairs of query i are `offsets[i]:offsets[i + 1]`, in the order given.
    `greater`, `tied` (one per pair): other candidates of the pool with a higher, and with an equal, score.
    `scores` (one per pair): exact float64 score of the relevant candidate: cosine, dot product or mean MaxSim.
    `top_ids` (n_queries, top_k): candidate rows, best first, padded with -1; `top_scores` padded with NaN.
    `pool_size` (n_queries): candidates ranked, after pool and exclusions.
    `scale` (n_queries): two scores of a query tie when, over its scale, they are equal to 12 decimals.
    `order` (n_candidates) or None: the keys that broke ties.
    """

    offsets: Ints
    greater: Ints
    tied: Ints
    scores: Floats
    top_ids: Ints
    top_scores: Floats
    pool_size: Ints
    scale: Floats
    order: Array | None = field(default=None, repr=False)

    @staticmethod
    def merge(pieces: Sequence[Ranks]) -> Ranks:
        """Ranks over the union of disjoint pools from the ranks over each: counts add, top lists interleave.

        All pieces must be of the same queries and positives, with equal positive scores and scales (`score_pairs`
        gives them before the pieces are ranked), and equally long top lists.
        """
        if not pieces:
            raise RankingError("there are no ranks to merge.")
        first = pieces[0]
        for i, piece in enumerate(pieces[1:], start=1):
            if not np.array_equal(piece.offsets, first.offsets):
                raise RankingError(f"piece {i} ranks other pairs of queries and positives than piece 0.")
            if not (np.array_equal(piece.scores, first.scores) and np.array_equal(piece.scale, first.scale)):
                raise RankingError(f"piece {i} has other positive scores than piece 0.")
            if piece.top_ids.shape != first.top_ids.shape:
                raise RankingError(f"piece {i} has top lists of another length than piece 0.")
            orders = [ranks.order for ranks in (piece, first) if ranks.order is not None]
            if len(orders) == 1 or (len(orders) == 2 and not np.array_equal(orders[0], orders[1])):
                raise RankingError(f"piece {i} breaks ties in another order than piece 0.")
        from omnirecall.ranking.exact import tie_keys
        from omnirecall.ranking.topk import Best

        n, k = first.top_ids.shape
        best = Best(n, k, first.order)
        for piece in pieces:
            queries, place = np.nonzero(piece.top_ids >= 0)
            scores = piece.top_scores[queries, place]
            best.add_exact(queries, piece.top_ids[queries, place], tie_keys(scores / first.scale[queries]), scores)
        ids, top = best.lists()
        return Ranks(
            first.offsets,
            np.sum([piece.greater for piece in pieces], axis=0),
            np.sum([piece.tied for piece in pieces], axis=0),
            first.scores,
            ids,
            top,
            np.sum([piece.pool_size for piece in pieces], axis=0),
            first.scale,
            first.order,
        )
