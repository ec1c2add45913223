"""From ids to row numbers before ranking, and from ranks to what measures read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnirecall.protocol.items import Judgments
from omnirecall.protocol.measures import RankedJudgments

Rows = tuple[NDArray[np.int64], NDArray[np.int64]]
"""A list of row numbers per query: offsets, shape (queries + 1,), and rows."""


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """The relevant candidates of each query, as ids, grades and row numbers.

    ``relevant`` and ``grades`` hold every relevant candidate, query after query, split by ``offsets``; ``in_pool`` marks those that
    are ranked. ``positives``, ``pool`` and ``exclude`` are what the ranking takes.
    """

    offsets: NDArray[np.int64]
    relevant: list[str]
    grades: NDArray[np.float64]
    in_pool: NDArray[np.bool_]
    positives: Rows
    pool: Rows | None
    exclude: Rows | None

    @property
    def outside(self) -> int:
        """How many relevant candidates lie outside their query's pool."""
        return int((~self.in_pool).sum())


def judged_rows(
    queries: Sequence[str],
    candidates: Sequence[str],
    judgments: Judgments,
    pools: Mapping[str, Sequence[str]] | None,
    exclude: Mapping[str, Sequence[str]],
) -> JudgedRows:
    """Row numbers for checked ids; a relevant id that is not in its query's pool keeps its grade and has no row."""
    named = {name for query in queries for name in judgments.get(query, {})}
    named.update(name for lists in (pools or {}, exclude) for ids in lists.values() for name in ids)
    row_of = {candidate: row for row, candidate in enumerate(candidates) if candidate in named}
    relevant: list[str] = []
    grades: list[float] = []
    rows: list[int] = []
    offsets = [0]
    for query in queries:
        pool = row_of if pools is None else set(pools[query])
        for candidate, grade in judgments.get(query, {}).items():
            if grade > 0:
                relevant.append(candidate)
                grades.append(grade)
                rows.append(row_of[candidate] if candidate in pool else -1)
        offsets.append(len(relevant))
    row_array, bounds = np.array(rows, np.int64), np.array(offsets, np.int64)
    in_pool = row_array >= 0
    return JudgedRows(
        offsets=bounds,
        relevant=relevant,
        grades=np.array(grades, np.float64),
        in_pool=in_pool,
        positives=(np.concatenate([[0], np.cumsum(in_pool)])[bounds].astype(np.int64), row_array[in_pool]),
        pool=None if pools is None else as_rows([row_of[candidate] for candidate in pools[query]] for query in queries),
        exclude=as_rows([row_of[candidate] for candidate in exclude.get(query, ())] for query in queries)
        if exclude
        else None,
    )


def as_rows(lists: Iterable[Sequence[int]]) -> Rows:
    """Lists of row numbers as offsets and rows."""
    lists = list(lists)
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in lists])]).astype(np.int64)
    return offsets, np.array([row for rows in lists for row in rows], np.int64)


def ranked_judgments(
    judged: JudgedRows, greater: NDArray[np.int64], tied: NDArray[np.int64], pool_size: NDArray[np.int64]
) -> RankedJudgments:
    """The counts of the ranked relevant candidates put back among all relevant ones; -1 for those outside the pool."""
    all_greater = np.full(len(judged.relevant), -1, np.int64)
    all_tied = np.zeros(len(judged.relevant), np.int64)
    all_greater[judged.in_pool] = greater
    all_tied[judged.in_pool] = tied
    return RankedJudgments(judged.offsets, judged.grades, all_greater, all_tied, pool_size)


def tied_queries(ranked: RankedJudgments) -> int:
    """Queries in which a relevant candidate ties with one that is not, so that their measures depend on an order."""
    query = np.repeat(np.arange(len(ranked.offsets) - 1), np.diff(ranked.offsets))
    ties = ranked.tied > 0
    groups, relevant = np.unique(
        np.stack([query[ties], ranked.greater[ties], ranked.tied[ties]]), axis=1, return_counts=True
    )
    return len(np.unique(groups[0][groups[2] + 1 > relevant]))
