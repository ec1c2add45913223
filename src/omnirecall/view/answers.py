"""What runs answered to queries, as the templates draw it: items with their media, candidates with their ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omnirecall.errors import UserError
from omnirecall.protocol.items import MediaRef, Packed
from omnirecall.results.tables import shown
from omnirecall.view.items import Index, ShownItem
from omnirecall.view.media import PICTURES, allowed, ending, policy_name
from omnirecall.view.queries import Compared
from omnirecall.view.ranks import Ranks, Relevant, Row, read_rows
from omnirecall.view.runs import ShownRun
from omnirecall.view.site import Site

MOST_LISTED = 3
"""Relevant candidates named in a list of queries."""
MOST_RELEVANT = 50
"""Relevant candidates shown on the page of one query."""
TIED = 12
"""Decimals to which tied scores are equal."""
WAITED = 0.3
"""Seconds that a page waits for what another process reads before it is shown without."""


@dataclass(frozen=True, slots=True)
class Medium:
    """One medium of an item as the templates draw it. ``kind``: image, audio, film, animation or folder."""

    kind: str
    source: str = ""
    frames: str = ""
    poster: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Thing:
    """An item as the templates draw it; ``known`` is False where the data do not hold it, or are not read."""

    id: str
    known: bool = False
    parts: str = ""
    text: str = ""
    instruction: str = ""
    media: tuple[Medium, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate in a list: at which rank, with which score, and whether it is relevant."""

    thing: Thing
    rank: str
    score: float
    relevant: bool = False
    grade: float = 0.0
    apart: bool = False
    """Whether it stands at the end of a list that it is not part of."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one run answered to one query. ``row``: its number there, -1 where the run has no such query."""

    run: ShownRun
    row: int
    measure: str = ""
    value: str = ""
    rank: str = ""
    top: tuple[Ranked, ...] = ()
    relevant: tuple[Ranked, ...] = ()
    pool: int = 0
    tied: bool = False
    more_relevant: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """A query with the answers of one run or of several."""

    query: Thing
    row: int
    answers: tuple[Answer, ...]
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """Draws queries and answers. ``whole``: wait for items as long as it takes, and look into every medium for its type."""

    site: Site
    whole: bool

    def index(self, run: ShownRun, task: str) -> Index | None:
        """The items of a task, if they are read in time."""
        return self.site.index(run, task, math.inf if self.whole else WAITED)

    def entries(
        self,
        run: ShownRun,
        second: ShownRun | None,
        task: str,
        ranks: Ranks,
        two: Compared | None,
        rows: Sequence[int],
        index: Index | None,
    ) -> list[Asked]:
        """The queries of some rows with the answers of a run and, where there is one, of a second beside it."""
        queries = self.things(run, task, index, "q", [ranks.ids[row].as_py() for row in rows])
        ours = self.answers(run, task, ranks, rows, index)
        theirs: list[Answer] = []
        if second is not None and two is not None:
            theirs = self.answers(
                second, task, two.ranks, [int(two.rows[row]) for row in rows], self.index(second, task)
            )
        entries = []
        for place, row in enumerate(rows):
            answers = (ours[place], *theirs[place : place + 1])
            difference = float(two.difference[row]) if two is not None and not math.isnan(two.difference[row]) else None
            entries.append(Asked(queries[ranks.ids[row].as_py()], row, answers, difference))
        return entries

    def answers(
        self, run: ShownRun, task: str, ranks: Ranks, rows: Sequence[int], index: Index | None, listed: bool = True
    ) -> list[Answer]:
        """A run's answers to the queries of some rows, which are -1 where it has no such query.

        ``listed``: short, for a list of queries, with the first relevant candidate after the ranked ones; else at length.
        """
        full = {row.row: row for row in read_rows(ranks, [row for row in rows if row >= 0])}
        kept = MOST_LISTED if listed else MOST_RELEVANT
        relevant = {number: sorted(row.relevant, key=_place)[:kept] for number, row in full.items()}
        wanted = [name for row in full.values() for name, _ in row.top]
        wanted += [one.id for some in relevant.values() for one in some]
        things = self.things(run, task, index, "c", wanted)
        return [
            self._drawn(run, ranks, full[row], relevant[row], things, listed) if row >= 0 else Answer(run, -1)
            for row in rows
        ]

    @staticmethod
    def _drawn(
        run: ShownRun,
        ranks: Ranks,
        row: Row,
        relevant: Sequence[Relevant],
        things: Mapping[str, Thing],
        listed: bool,
    ) -> Answer:
        known = {one.id: one for one in row.relevant}
        scores = [score for _, score in row.top]
        top = []
        for place, (name, score) in enumerate(row.top[: 10 if listed else None]):
            one = known.get(name)
            rank = _rank_in(scores, place, row.pool_size) if one is None else _relevant_rank(one)
            top.append(Ranked(things[name], rank, score, one is not None, 0.0 if one is None else one.grade))
        drawn = [Ranked(things[one.id], _relevant_rank(one), one.score, True, one.grade) for one in relevant]
        if listed and drawn and not any(one.relevant for one in top):
            top.append(replace(drawn[0], apart=True))
        return Answer(
            run=run,
            row=row.row,
            measure=str(ranks.measure),
            value=shown(float(ranks.value[row.row]), str(ranks.measure)),
            rank=_span(ranks.best[row.row], ranks.worst[row.row], row.pool_size),
            top=tuple(top),
            relevant=tuple(drawn),
            pool=row.pool_size,
            tied=bool(ranks.best[row.row] != ranks.worst[row.row]),
            more_relevant=len(row.relevant) - len(relevant),
        )

    def things(self, run: ShownRun, task: str, index: Index | None, role: str, ids: Sequence[str]) -> dict[str, Thing]:
        """Items by id; those that are not at hand have nothing but their id."""
        items = index.items(role, ids) if index is not None else {}
        return {name: self._thing(run, task, items[name]) if name in items else Thing(name) for name in ids}

    def _thing(self, run: ShownRun, task: str, item: ShownItem) -> Thing:
        root = self.site.place(run).root
        known = self.site.task(run, task)
        media = []
        for part, (name, ref) in item.media.items():
            if root is not None and known is not None:
                media.append(self._medium(part, name, ref, root, policy_name(known.media)))
        return Thing(item.id, True, item.parts, item.text or "", item.instruction or "", tuple(media))

    def _medium(self, part: str, name: str, ref: MediaRef, root: Path, policy: str) -> Medium:
        base = f"m/{self.site.root_key(root)}/{name}"
        try:
            real = allowed(ref, root)
        except UserError as error:
            return Medium(part, problem=str(error))
        looked_at = self.whole or not isinstance(real, Packed)
        kind = ending(real) if looked_at else ""
        source = base + kind
        if part == "image":
            shown_here = kind[1:] in PICTURES or not looked_at
            return Medium("image", source if shown_here else f"{base}.png")
        if part == "audio":
            return Medium("audio", source)
        frames = f"{base}/{policy}/frames.json"
        if isinstance(real, Path) and real.is_dir():
            return Medium("folder", frames=frames, poster=f"{base}/{policy}/0.png")
        if kind[1:] in PICTURES:
            return Medium("animation", source, frames, f"{base}/{policy}/0.png")
        return Medium("film", source, frames, f"{base}/{policy}/0.png")


def _rank_in(scores: Sequence[float], place: int, pool: int) -> str:
    """The rank in a list of falling scores; equal scores share a range, whose end is not known where the list ends in it."""
    here = round(scores[place], TIED)
    equal = [other for other, score in enumerate(scores) if round(score, TIED) == here]
    first, last = equal[0] + 1, equal[-1] + 1
    if last == len(scores) < pool and first < last:
        return f"{first:,}+"
    return f"{first:,}" if first == last else f"{first:,}\u2013{last:,}"


def _place(one: Relevant) -> tuple[bool, int]:
    return one.greater < 0, one.greater


def _relevant_rank(one: Relevant) -> str:
    if one.greater < 0:
        return "not in the pool"
    first = one.greater + 1
    return f"{first:,}" if not one.tied else f"{first:,}\u2013{first + one.tied:,}"


def _span(best: float, worst: float, pool: int) -> str:
    if best > pool:
        return "not ranked"
    return f"{best:,.0f}" if best == worst else f"{best:,.0f}\u2013{worst:,.0f}"
