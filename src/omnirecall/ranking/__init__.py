"""Vectors to ranks: exact counts of what scores higher than, and what ties with, each relevant candidate."""

from omnirecall.ranking.inputs import BFloat16, Ragged, RankingError, Segments
from omnirecall.ranking.rank import rank, score_pairs
from omnirecall.ranking.ranks import PairScores, Ranks

__all__ = ["BFloat16", "PairScores", "Ragged", "RankingError", "Ranks", "Segments", "rank", "score_pairs"]
