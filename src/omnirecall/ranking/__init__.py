"""Vectors to ranks: exact counts of what scores higher than, and what ties with, each relevant candidate."""

from omnirecall.ranking.inputs import BFloat16, RankingError
from omnirecall.ranking.rank import rank
from omnirecall.ranking.ranks import Ranks

__all__ = ["BFloat16", "RankingError", "Ranks", "rank"]
