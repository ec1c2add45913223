"""The stored top of each ranked list, and the ranks that an order of equal scores gives as far as it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from omnirecall.errors import UserError
from omnirecall.protocol.measures import Measure, RankedJudgments
from omnirecall.results.intervals import Ints
from omnirecall.results.record import Run
from omnirecall.results.stored import StoredTask, read_columns, read_task, task_path

EVER = 2**62
"""A depth that no cut reaches."""


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """The ranks of a task without ties.

    ``relevant``: the ids of each query's relevant candidates, in the order of its pairs; ``listed``: those of its list, best first,
    equal scores in the order of the pool's rows. ``known``, int64 (n_queries,): cuts up to this depth rest on nothing that is not
    stored.
    """

    task: StoredTask
    ranked: RankedJudgments
    relevant: list[list[str]]
    listed: list[list[str]]
    known: Ints


def ordered_task(run: Run, name: str, tie_break: str) -> Ordered:
    """The ranks of a task with equal scores in the order of ``index`` (rows of the pool) or ``docno`` (ids, descending by bytes).

    Where a tied group that holds a relevant candidate is longer than the stored list, its order is known only as far as the list
    goes (index) or not at all (docno), and ``known`` ends there. UserError where the list contradicts the counts.
    """
    task = read_task(run, name)
    path = task_path(run, name)
    columns = read_columns(path, run, ["relevant_ids", "top_ids"])
    lists = columns["relevant_ids"].to_pylist(), columns["top_ids"].to_pylist()
    found = Ordered(task, task.ranked, *lists, np.full(len(task.query_ids), EVER))
    greater = task.ranked.greater.copy()
    for query, above, pairs in _tied_groups(task.ranked):
        first, last = above, above + int(task.ranked.tied[pairs[0]]) + 1
        group = found.listed[query][first:last]
        start = int(task.ranked.offsets[query])
        names = [found.relevant[query][pair - start] for pair in pairs]
        whole = len(group) == last - first
        if not whole and len(pairs) == last - first and tie_break == "docno":
            group, whole = names, True
        if whole and not set(names) <= set(group):
            raise UserError(
                f"{path}: query {task.query_ids[query]}: its list does not hold the candidates that its counts name; run it again"
            )
        if tie_break == "docno":
            group = sorted(group, key=str.encode, reverse=True)
        if not whole:
            found.known[query] = min(found.known[query], first if tie_break == "docno" else first + len(group))
        place = {one: position for position, one in enumerate(group)} if whole or tie_break == "index" else {}
        unlisted = iter(
            range(len(group), last - first)
        )  # where these come does not matter: they are beyond what is known
        for pair, one in zip(pairs, names, strict=True):
            greater[pair] = first + place[one] if one in place else first + next(unlisted, last - first - 1)
    ranked = replace(task.ranked, greater=greater, tied=np.zeros_like(task.ranked.tied))
    return replace(found, ranked=ranked)


def refuse_deeper(measures: Sequence[Measure], found: Ordered, run: Run, name: str, what: str) -> None:
    """UserError for a measure whose value depends on more of the order of ties than is stored."""
    for measure in measures:
        short = found.known < (measure.k or EVER)
        if short.any():
            query = int(short.argmax())
            raise UserError(
                f"{run.folder}: task {name}: {measure} {what} needs the order of candidates that tie with a relevant one of query"
                f" {found.task.query_ids[query]} beyond the {len(found.listed[query])} that are stored; run with a larger --top-k"
            )


def _tied_groups(ranked: RankedJudgments) -> Iterator[tuple[int, int, list[int]]]:
    """(query, candidates above, its pairs) for each group of equal scores that holds a relevant candidate and another."""
    tied = np.flatnonzero((ranked.tied > 0) & (ranked.greater >= 0))
    query = np.repeat(np.arange(len(ranked.offsets) - 1), np.diff(ranked.offsets))[tied]
    groups: dict[tuple[int, int], list[int]] = {}
    for pair, owner, above in zip(tied.tolist(), query.tolist(), ranked.greater[tied].tolist(), strict=True):
        groups.setdefault((owner, above), []).append(pair)
    for (owner, above), pairs in groups.items():
        yield owner, above, pairs
