"""Which queries of a task are shown, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from omnirecall.view.items import Index
from omnirecall.view.ranks import Ranks, matched

Show = Literal["all", "missed", "hit", "ties", "differs", "better", "worse"]
Sort = Literal["loss", "gain", "difference", "order", "id"]
SHOWS: tuple[Show, ...] = get_args(Show)
SORTS: tuple[Sort, ...] = get_args(Sort)
OF_TWO: tuple[Show, ...] = ("differs", "better", "worse")
"""What needs a second run."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What the reader asked for. ``modality``: as in ``I,T``. ``text``: to be found in the id or the text of the query."""

    show: Show = "all"
    sort: Sort = "loss"
    modality: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """A second run's ranks beside the first's. ``rows``: for each query its row in ``ranks``, -1 where it has none.

    ``difference``: how much better the first run does on each query, shape (queries,); NaN where the second has no such query.
    """

    ranks: Ranks
    rows: NDArray[np.int64]
    difference: NDArray[np.float64]


def compared(ranks: Ranks, other: Ranks) -> Compared:
    """Two runs' values of the same queries."""
    rows = matched(ranks, other)
    theirs = np.where(rows >= 0, other.value[np.maximum(rows, 0)] if len(other) else np.nan, np.nan)
    sign = 1 if ranks.measure.higher_is_better else -1
    return Compared(other, rows, sign * (ranks.value - theirs))


def masks(ranks: Ranks, two: Compared | None) -> dict[Show, NDArray[np.bool_]]:
    """Which queries each choice shows."""
    cut = ranks.measure.k or 1
    found: dict[Show, NDArray[np.bool_]] = {
        "all": np.ones(len(ranks), np.bool_),
        "missed": ranks.best > cut,
        "hit": ranks.worst <= cut,
        "ties": ranks.tied,
    }
    if two is not None:
        with np.errstate(invalid="ignore"):
            found |= {
                "differs": np.abs(two.difference) > 0,
                "better": two.difference > 0,
                "worse": two.difference < 0,
            }
    return found


def chosen(ranks: Ranks, asked: Filter, two: Compared | None, index: Index | None) -> NDArray[np.int64]:
    """Row numbers of the queries to show, in their order."""
    keep = masks(ranks, two).get(asked.show, np.ones(len(ranks), np.bool_))
    matching = index.matching(asked.text, asked.modality) if index is not None else None
    if matching is None and asked.text:
        matching = {name for name in ranks.ids.to_pylist() if asked.text.casefold() in name.casefold()}
    if matching is not None:
        keep = keep & np.fromiter((name in matching for name in ranks.ids.to_pylist()), np.bool_, len(ranks))
    order = ordered(ranks, asked.sort, two)
    rows: NDArray[np.int64] = order[keep[order]]
    return rows


def ordered(ranks: Ranks, sort: Sort, two: Compared | None) -> NDArray[np.int64]:
    """Every row number in the order asked for."""
    if sort == "gain":
        return ranks.by_loss()[::-1]
    if sort == "difference" and two is not None:
        size = np.nan_to_num(np.abs(two.difference), nan=-1.0)
        return np.lexsort((np.arange(len(ranks)), -size)).astype(np.int64)
    if sort == "order":
        return np.arange(len(ranks), dtype=np.int64)
    if sort == "id":
        return np.argsort(np.array(ranks.ids.to_pylist(), dtype=object), kind="stable").astype(np.int64)
    return ranks.by_loss()
