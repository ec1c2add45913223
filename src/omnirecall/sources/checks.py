"""What is refused before any work, because it would make a number wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from omnirecall import columns
from omnirecall.errors import UserError
from omnirecall.protocol.items import Judgments, TaskData
from omnirecall.protocol.measures import LARGEST_EXPONENT, Measure
from omnirecall.protocol.suites import Task


@dataclass(frozen=True, slots=True)
class Places:
    """Where the ids of each kind stand, for errors: a file, or a task and its file."""

    queries: str
    candidates: str
    judgments: str
    pools: str


def check_ids(
    queries: Sequence[str],
    candidates: Sequence[str],
    judgments: Judgments,
    pools: Mapping[str, Sequence[str]] | None,
    exclude: Mapping[str, Sequence[str]],
    *,
    unjudged: str,
    places: Places,
) -> list[int]:
    """Row numbers of the queries that have a relevant candidate, all of them unless ``unjudged`` is "drop".

    UserError for duplicate ids, unknown ids, an id both relevant and excluded, a query without pool or without relevant candidate.
    """
    _refuse_duplicates(queries, f"{places.queries}: query")
    _refuse_duplicates(candidates, f"{places.candidates}: candidate")
    known_queries = set(queries)
    named = {name for lists in (pools or {}, exclude) for ids in lists.values() for name in ids}
    known_candidates = {name for name in candidates if name in named} if named else set()
    if unjudged != "drop":
        _refuse_unknown_queries(judgments, known_queries, f"{places.judgments}: the judgments name")
    _refuse_unknown_queries(pools or {}, known_queries, f"{places.pools}: the pools name")
    _refuse_unknown_queries(exclude, known_queries, f"{places.pools}: the exclusions name")
    for query, ids in (pools or {}).items():
        _check_list(ids, known_candidates, f"{places.pools}: the pool of query {query}")
        if not ids:
            raise UserError(f"{places.pools}: the pool of query {query} is empty")
    for query, ids in exclude.items():
        _check_list(ids, known_candidates, f"{places.pools}: the exclusions of query {query}")
        for candidate in ids:
            if judgments.get(query, {}).get(candidate, 0) > 0:
                raise UserError(
                    f"{places.pools}: query {query}: candidate {candidate} is both excluded and relevant; it can be one of them"
                )
    if pools is not None and (bare := next((query for query in queries if query not in pools), None)) is not None:
        raise UserError(f"{places.pools}: query {bare} has no pool, though other queries have one")
    for query, ids in exclude.items():
        if len(set(ids)) == len(candidates) if pools is None else set(ids).issuperset(pools[query]):
            raise UserError(f"{places.pools}: the exclusions of query {query} leave nothing in its pool")
    judged = [row for row, query in enumerate(queries) if any(grade > 0 for grade in judgments.get(query, {}).values())]
    if unjudged != "drop" and len(judged) < len(queries):
        have = set(judged)
        first = next(query for row, query in enumerate(queries) if row not in have)
        raise UserError(
            f"{places.judgments}: query {first} has no relevant candidate ({len(queries) - len(judged)} such queries);"
            f' judge it, remove it, or drop all such queries with unjudged = "drop" (`--unjudged drop` of score)'
        )
    if not judged:
        raise UserError(f"{places.judgments}: no query has a relevant candidate")
    return judged


def other_pools(data: TaskData, task: Task) -> list[str]:
    """Queries whose own pool is not of the card's size, unless repeated candidates, which a reader drops, explain it."""
    if task.pool_size is None or data.pools is None:
        return []
    sizes = {query: len(pool) for query, pool in data.pools.items()}
    other = [query for query, size in sizes.items() if size != task.pool_size]
    missing = sum(abs(task.pool_size - sizes[query]) for query in other)
    return other if missing > data.defects.get("duplicate-candidate", 0) else []


def check_grades(judgments: Judgments, measures: Sequence[Measure], place: str) -> None:
    """UserError for a grade whose exponential gain would overflow, where a measure takes exponential gains."""
    if not any(measure.name == "ndcg_exp" for measure in measures):
        return
    for query, row in judgments.items():
        for candidate, grade in row.items():
            if grade > LARGEST_EXPONENT:
                raise UserError(
                    f"{place}: query {query}, candidate {candidate}: ndcg_exp takes grades up to {LARGEST_EXPONENT}, not {grade:g};"
                    f" use ndcg"
                )


def _refuse_duplicates(ids: Sequence[str], what: str) -> None:
    """UserError for an id that is used again."""
    hashes = columns.Hashes()
    for name in ids:
        hashes.add(name)
    again = hashes.repeated()
    if again:  # ids that share a hash, nearly always because they are equal
        name, count = Counter(name for name in ids if hash(name) in again).most_common(1)[0]
        if count > 1:
            raise UserError(f"{what} id {name} is used {count} times; ids are unique")


def _refuse_unknown_queries(table: Mapping[str, object], known: Set[str], what: str) -> None:
    for query in table:
        if query not in known:
            raise UserError(f"{what} the query {query}, which is not among the queries")


def _check_list(ids: Sequence[str], known: Set[str], what: str) -> None:
    for candidate in ids:
        if candidate not in known:
            raise UserError(f"{what} names {candidate}, which is not among the candidates")
    _refuse_duplicates(ids, f"{what}: candidate")
