"""Addresses to pages: the same for the server and for the static copy."""

from __future__ import annotations

import importlib
import json
import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import jinja2
import numpy as np
from markupsafe import Markup

from omnirecall._version import __version__
from omnirecall.errors import UserError
from omnirecall.protocol.items import MediaRef
from omnirecall.results.paired import paired_task
from omnirecall.results.tables import percent, shown
from omnirecall.view.answers import WAITED, Answers, Asked, Ranked
from omnirecall.view.board import abilities, board_of
from omnirecall.view.duplicates import NEAR, Found, Pair, as_csv, as_rows
from omnirecall.view.intervals import clusters_of
from omnirecall.view.items import Index
from omnirecall.view.media import PICTURES, UNKNOWN, FramesShown, picture_png
from omnirecall.view.policy import HERE, content_policy
from omnirecall.view.queries import OF_TWO, SHOWS, SORTS, Compared, Filter, chosen, compared, masks
from omnirecall.view.ranks import Ranks
from omnirecall.view.runs import ShownRun, safe_key
from omnirecall.view.site import Site
from omnirecall.view.summary import by_direction, curves, directions, rank_histogram, score_histogram, tie_numbers

ON_A_PAGE = 10
"""Queries on one page."""
OVERLAID = 8
"""Runs drawn in one chart."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: its bytes, or a medium to be sent from where it lies."""

    body: bytes = b""
    kind: str = "text/html; charset=utf-8"
    status: int = 200
    ref: MediaRef | None = None
    download: str = ""
    fresh: bool = True
    """Whether it must be asked for again next time."""


class NotFoundError(Exception):
    """No page has this address; the text says what is missing."""


class Pages:
    """Makes the page of an address. ``static``: for a copy of files, without what needs a server."""

    def __init__(self, site: Site, static: bool = False, most_queries: int | None = None) -> None:
        self.site = site
        self.static = static
        self.answers = Answers(site, whole=static)
        self.most_queries = most_queries
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        filters: dict[str, Callable[..., Any]] = {
            "percent": percent,
            "number": "{:,}".format,
            "data": _script_data,
            "breakable": _breakable,
        }
        self.templates.filters |= filters
        self.templates.globals |= {
            "version": __version__,
            "static_copy": static,
            "shown": shown,
            "key": safe_key,
            "policy": content_policy(framed=False),
        }
        self.routes: list[tuple[re.Pattern[str], Callable[..., Page]]] = [
            (re.compile(pattern), page)
            for pattern, page in (
                (r"", self.overview),
                (r"s/(?P<suite>[^/]+)/", self.suite),
                (r"s/(?P<suite>[^/]+)/t/(?P<task>[^/]+)/", self.task),
                (r"r/(?P<run>[^/]+)/", self.run),
                (
                    r"r/(?P<run>[^/]+)/t/(?P<task>[^/]+)/(?:vs/(?P<other>[^/]+)/)?(?:(?P<show>all|missed|hit|ties|differs|better|worse)/)?(?:(?P<number>\d{1,9})/)?",
                    self.queries,
                ),
                (r"r/(?P<run>[^/]+)/t/(?P<task>[^/]+)/n/(?P<row>\d{1,12})/(?:vs/(?P<other>[^/]+)/)?", self.query),
                (r"r/(?P<run>[^/]+)/t/(?P<task>[^/]+)/duplicates/(?:(?P<number>\d{1,9})/)?", self.duplicates),
                (r"r/(?P<run>[^/]+)/t/(?P<task>[^/]+)/duplicates/pairs\.(?P<form>csv|json)", self.pairs),
                (r"m/(?P<root>[0-9a-f]+)/(?P<name>[0-9a-f]+)(?:\.(?P<ending>[a-z0-9]+))?", self.medium),
                (r"m/(?P<root>[0-9a-f]+)/(?P<name>[0-9a-f]+)/(?P<policy>[0-9a-f]+)/frames\.json", self.frames),
                (
                    r"m/(?P<root>[0-9a-f]+)/(?P<name>[0-9a-f]+)/(?P<policy>[0-9a-f]+)/(?P<place>\d{1,6})\.png",
                    self.frame,
                ),
            )
        ]

    def warm(self) -> None:
        """Read the templates and the libraries that the first page needs."""
        for name in self.templates.list_templates():
            self.templates.get_template(name)
        importlib.import_module("pyarrow.compute")

    def answer(self, path: str, query: Mapping[str, str] | None = None) -> Page:
        """The page of an address, which is relative to the root and has no leading slash."""
        for pattern, page in self.routes:
            if match := pattern.fullmatch(path):
                try:
                    return page(query or {}, **{name: value or "" for name, value in match.groupdict().items()})
                except NotFoundError as error:
                    return self.problem(path, 404, str(error))
                except UserError as error:
                    return self.problem(path, 404 if path.startswith("m/") else 200, str(error))
                except Exception as error:  # never a blank page: what is wrong is said, and the trace goes to the log
                    traceback.print_exc()
                    return self.problem(path, 500, f"This page could not be made: {type(error).__name__}: {error}")
        return self.problem(path, 404, "There is no page at this address.")

    def problem(self, path: str, status: int, sentence: str) -> Page:
        """A page that says what is wrong."""
        if path.startswith("m/"):
            return Page(sentence.encode(), "text/plain; charset=utf-8", status)
        return self._page("problem.html", path, status=status, sentence=sentence, title="Not shown")

    def _page(self, template: str, path: str, status: int = 200, **values: Any) -> Page:
        depth = path.count("/")
        text = self.templates.get_template(template).render(root="../" * depth or "./", here=path, **values)
        return Page(text.encode("utf-8", "replace"), status=status)

    # --- finding things -------------------------------------------------------------------------------------------

    def _suite_runs(self, key: str) -> tuple[str, list[ShownRun]]:
        for name, runs in self.site.suites().items():
            if safe_key(name) == key:
                return name, runs
        raise NotFoundError("No suite of that name has a run here.")

    def _run(self, key: str) -> ShownRun:
        run = self.site.runs().get(key)
        if run is None:
            raise NotFoundError("There is no run of that name here; it may have been moved or removed.")
        return run

    @staticmethod
    def _task(runs: Iterable[ShownRun], key: str) -> str:
        for run in runs:
            for name in run.record.tasks:
                if safe_key(name) == key:
                    return name
        raise NotFoundError("No run here has a task of that name.")

    def _with_ranks(self, runs: Iterable[ShownRun], task: str) -> list[ShownRun]:
        return [run for run in runs if run.ranks_file(task).is_file()]

    # --- pages ----------------------------------------------------------------------------------------------------

    def overview(self, query: Mapping[str, str]) -> Page:
        """Every suite with its runs."""
        suites = self.site.suites()
        if len(suites) == 1:
            return self._leaderboard("", next(iter(suites)))
        return self._page(
            "overview.html", "", title="Runs", suites=suites, folders=[str(f) for f in self.site.folder.folders]
        )

    def suite(self, query: Mapping[str, str], suite: str) -> Page:
        """The leaderboard of one suite."""
        name, _ = self._suite_runs(suite)
        return self._leaderboard(f"s/{suite}/", name)

    def _leaderboard(self, path: str, name: str) -> Page:
        runs = self.site.suites()[name]
        suite = next((place.suite for run in runs if (place := self.site.place(run)).suite), None)
        intervals = self._intervals(runs)
        board = board_of(self.site.tree(runs[0]), runs, {key: found or {} for key, found in intervals.items()})
        what, points = abilities(runs[:OVERLAID], board)
        notes = dict.fromkeys(note for run in runs if (note := self.site.place(run).note))
        return self._page(
            "suite.html",
            path,
            title=suite.title if suite and suite.title else name,
            suite=name,
            card=suite,
            board=board,
            runs=runs,
            notes=list(notes),
            reading=None in intervals.values(),
            abilities={
                "chart": "abilities",
                "what": what,
                "points": points,
                "runs": [run.title for run in runs[:OVERLAID]],
            },
        )

    def _intervals(self, runs: Iterable[ShownRun]) -> dict[str, Mapping[str, tuple[float, float]] | None]:
        """The intervals of each run by its key; None where they are still being computed when the page has waited long enough."""
        end = time.monotonic() + WAITED / 2
        return {
            run.key: self.site.intervals(run, math.inf if self.static else max(0.0, end - time.monotonic()))
            for run in runs
        }

    def run(self, query: Mapping[str, str], run: str) -> Page:
        """What a run's record says."""
        shown_run = self._run(run)
        record = shown_run.record
        bars = by_direction(record.tasks, list(record.tasks))
        return self._page(
            "run.html",
            f"r/{run}/",
            title=shown_run.title,
            run=shown_run,
            record=record,
            place=self.site.place(shown_run),
            ranked={name for name in record.tasks if shown_run.ranks_file(name).is_file()},
            bars={"chart": "bars", "points": bars} if len(bars) > 1 else None,
        )

    def task(self, query: Mapping[str, str], suite: str, task: str) -> Page:
        """Charts of one task, with every run that ranked it."""
        suite_name, runs = self._suite_runs(suite)
        name = self._task(runs, task)
        of_task = [run for run in runs if name in run.record.tasks]
        charts, problems = [], []
        for run in self._with_ranks(of_task, name)[:OVERLAID]:
            try:
                charts.append({"run": run.title, "key": run.key, **self._summary(run, name)})
            except UserError as error:
                problems.append((run, str(error)))
        place = self.site.place(of_task[0])
        card = place.suite.task(name) if place.suite and name in place.suite.task_names() else None
        bars = [
            {"run": run.title, "points": by_direction(run.record.tasks, list(run.record.tasks))}
            for run in of_task[:OVERLAID]
        ]
        return self._page(
            "task.html",
            f"s/{suite}/t/{task}/",
            title=name,
            suite=suite_name,
            task=name,
            card=card,
            runs=of_task,
            ranked={run.key for run in self._with_ranks(of_task, name)},
            charts=charts,
            curve_rows=_curve_rows(charts),
            problems=problems,
            intervals={key: (found or {}).get(name) for key, found in self._intervals(of_task).items()},
            bars=[bar for bar in bars if len(cast(list[Any], bar["points"])) > 1],
            here_direction=card.direction if card else "",
            reading=any(chart["reading"] for chart in charts),
        )

    def _summary(self, run: ShownRun, task: str) -> dict[str, Any]:
        ranks = self.site.ranks(run, task)
        index = self.site.index(run, task, math.inf if self.static else WAITED / 4)

        def compute() -> dict[str, Any]:
            return {
                "histogram": rank_histogram(ranks),
                "curves": curves(ranks),
                "scores": score_histogram(ranks),
                "ties": tie_numbers(ranks),
                "queries": len(ranks),
            }

        stamp = ranks.path.stat().st_mtime_ns
        summary = dict(self.site.kept.get(("summary", ranks.path, stamp), compute))
        inside: list[dict[str, Any]] = []
        if index is not None:
            inside = self.site.kept.get(("directions", ranks.path, stamp), partial(directions, ranks, index))
        return summary | {"directions": inside, "reading": index is None and self.site.readable(run, task)}

    def queries(self, query: Mapping[str, str], run: str, task: str, other: str, show: str, number: str) -> Page:
        """A page of a task's queries."""
        shown_run = self._run(run)
        name = self._task([shown_run], task)
        other = query.get("vs", other)
        show = query.get("show", show) or "all"
        if show not in SHOWS:
            raise NotFoundError(f"Queries can be shown by {', '.join(SHOWS)}.")
        sort = query.get("sort", "difference" if show == "differs" else "loss")
        asked = Filter(
            show=show,
            sort=sort if sort in SORTS else "loss",
            modality=query.get("modality", ""),
            text=query.get("q", "").strip(),
        )
        ranks = self.site.ranks(shown_run, name)
        second = self._run(other) if other else None
        two = compared(ranks, self.site.ranks(second, name)) if second is not None else None
        if show in OF_TWO and two is None:
            raise NotFoundError("Choose a second run to see where they differ.")
        index = self.answers.index(shown_run, name)
        rows = chosen(ranks, asked, two, index)
        if self.static and self.most_queries is not None:
            rows = rows[np.isin(rows, ranks.by_loss()[: self.most_queries])]
        pages = max(1, math.ceil(len(rows) / ON_A_PAGE))
        page = min(max(1, int(query.get("page", number) or 1) if query.get("page", number).isdecimal() else 1), pages)
        on_page = rows[(page - 1) * ON_A_PAGE : page * ON_A_PAGE].tolist()
        address = partial(self._list_address, run, task, other, asked)
        return self._page(
            "queries.html",
            f"r/{run}/t/{task}/" + "".join(f"{part}/" for part in self._tail(other, show, number) if not query),
            title=f"{name}: queries",
            run=shown_run,
            task=name,
            record=shown_run.record.tasks[name],
            asked=asked,
            second=second,
            counts={one: int(mask.sum()) for one, mask in masks(ranks, two).items()},
            total=len(rows),
            page=page,
            pages=pages,
            first=(page - 1) * ON_A_PAGE,
            entries=self.answers.entries(shown_run, second, name, ranks, two, on_page, index),
            others=self._rivals(shown_run, name),
            modalities=index.parts("q") if index is not None else [],
            address=address,
            cut=ranks.measure.k or 1,
            note=self._data_note(shown_run, name, index),
            reading=index is None and self.site.readable(shown_run, name),
            warning=self._other_data(shown_run, second, name),
            paired=None
            if second is None or two is None
            else self.site.kept.get(
                ("paired", shown_run.key, second.key, name, ranks.path.stat().st_mtime_ns), partial(_paired, ranks, two)
            ),
            queries=len(ranks),
            row_address=partial(self._row_address, run, task, other),
        )

    @staticmethod
    def _tail(other: str, show: str, number: str) -> list[str]:
        return [
            *(["vs", other] if other else []),
            *([show] if show != "all" or number else []),
            *([number] if number else []),
        ]

    def _list_address(self, run: str, task: str, other: str, asked: Filter, show: str = "", page: int = 1) -> str:
        """The address of a list of queries, relative to the root."""
        show = show or asked.show
        base = f"r/{run}/t/{task}/"
        plain = asked.sort in ("loss", "difference") and not asked.modality and not asked.text
        if self.static or plain:
            tail = [
                *(["vs", other] if other else []),
                *([show] if show != "all" or page > 1 else []),
                *([str(page)] if page > 1 else []),
            ]
            return base + "".join(f"{part}/" for part in tail)
        values = {
            "vs": other,
            "show": show,
            "sort": asked.sort,
            "modality": asked.modality,
            "q": asked.text,
            "page": page,
        }
        return base + "?" + urlencode({name: value for name, value in values.items() if value not in ("", 1)})

    def _row_address(self, run: str, task: str, other: str, row: int) -> str:
        versus = f"vs/{other}/" if other and not self.static else ""
        return f"r/{run}/t/{task}/n/{row}/{versus}"

    def _rivals(self, run: ShownRun, task: str) -> list[ShownRun]:
        """The other runs of the suite that ranked this task."""
        runs = self.site.suites().get(run.record.suite, [])
        return [one for one in self._with_ranks(runs, task) if one.key != run.key and task in one.record.tasks]

    @staticmethod
    def _other_data(run: ShownRun, second: ShownRun | None, task: str) -> str:
        if second is None:
            return ""
        ours, theirs = run.record.tasks[task].hashes, second.record.tasks[task].hashes
        parts = [part for part in ("queries", "pool", "judgments") if ours.get(part) != theirs.get(part)]
        return f"The two runs had other {' and '.join(parts)}; their values do not compare as a whole." if parts else ""

    def _data_note(self, run: ShownRun, task: str, index: Index | None) -> str:
        place = self.site.place(run)
        if index is not None and index.problem:
            return f"The items cannot be read: {index.problem}."
        name = self.site.index_name(run, task)
        if name and self.site.jobs.failed(name):
            return "The items cannot be read: the process that reads them was stopped."
        return place.note

    def query(self, query: Mapping[str, str], run: str, task: str, row: str, other: str) -> Page:
        """One query with the answers of one run or several."""
        shown_run = self._run(run)
        name = self._task([shown_run], task)
        other = query.get("vs", other)
        ranks = self.site.ranks(shown_run, name)
        at = int(row)
        if at >= len(ranks):
            raise NotFoundError(f"The task has {len(ranks)} queries.")
        rivals = self._rivals(shown_run, name)
        seconds = [self._run(other)] if other else rivals[:3] if self.static else []
        index = self.answers.index(shown_run, name)
        answers = self.answers.answers(shown_run, name, ranks, [at], index, listed=False)
        for second in seconds:
            theirs = self.site.ranks(second, name)
            found = int(compared(ranks, theirs).rows[at])
            answers += self.answers.answers(
                second, name, theirs, [found], self.answers.index(second, name), listed=False
            )
        order = ranks.by_loss()
        place = int((order == at).nonzero()[0][0])
        thing = self.answers.things(shown_run, name, index, "q", [ranks.ids[at].as_py()])[ranks.ids[at].as_py()]
        around = (order[place - 1] if place else None, order[place + 1] if place + 1 < len(order) else None)
        if self.static and self.most_queries is not None and place + 1 >= self.most_queries:
            around = (around[0], None)
        return self._page(
            "query.html",
            f"r/{run}/t/{task}/n/{row}/" + (f"vs/{other}/" if other and "vs" not in query else ""),
            title=f"{name}: query {ranks.ids[at].as_py()}",
            run=shown_run,
            task=name,
            record=shown_run.record.tasks[name],
            asked=Asked(thing, at, tuple(answers)),
            others=rivals,
            second=seconds[0] if other else None,
            place=place + 1,
            queries=len(ranks),
            before=None if around[0] is None else self._row_address(run, task, other, int(around[0])),
            after=None if around[1] is None else self._row_address(run, task, other, int(around[1])),
            row=at,
            note=self._data_note(shown_run, name, index),
            reading=index is None and self.site.readable(shown_run, name),
            warning=self._other_data(shown_run, seconds[0] if seconds else None, name),
        )

    def _found(self, run: ShownRun, task: str, wait: float) -> Found | None:
        name = self.site.duplicates_name(run, task, wait)
        return Found(self.site.jobs.file(name)) if name and self.site.jobs.wait(name, wait) else None

    def duplicates(self, query: Mapping[str, str], run: str, task: str, number: str) -> Page:
        """Candidates above a relevant one with the same content."""
        shown_run = self._run(run)
        name = self._task([shown_run], task)
        self.site.ranks(shown_run, name)
        found = self._found(shown_run, name, math.inf if self.static else WAITED)
        index = self.site.index(shown_run, name)
        counts = found.counts() if found is not None else {}
        total = counts.get("same", 0) + counts.get("near", 0)
        pages = max(1, math.ceil(total / ON_A_PAGE))
        page = min(max(1, int(number or 1)), pages)
        pairs = found.pairs((page - 1) * ON_A_PAGE, ON_A_PAGE) if found is not None else []
        done, of = self.site.duplicates_progress(shown_run, name)
        return self._page(
            "duplicates.html",
            f"r/{run}/t/{task}/duplicates/" + (f"{number}/" if number else ""),
            title=f"{name}: false negatives",
            base=f"r/{run}/t/{task}/duplicates/",
            run=shown_run,
            task=name,
            near=int(NEAR),
            note=self._data_note(shown_run, name, index),
            reading=found is None and self.site.searchable(shown_run, name),
            progress=f"The queries are being looked at: {done:,} of {of:,}."
            if of
            else "The items of this task are being read.",
            counts=counts,
            page=page,
            pages=pages,
            entries=[self._pair(shown_run, name, pair, index) for pair in pairs],
        )

    def _pair(self, run: ShownRun, task: str, pair: Pair, index: Index | None) -> dict[str, Any]:
        things = self.answers.things(run, task, index, "c", [pair.candidate, pair.relevant])
        return {
            "row": pair.row,
            "kind": pair.kind,
            "how": pair.how,
            "query": self.answers.things(run, task, index, "q", [pair.query])[pair.query],
            "candidate": Ranked(things[pair.candidate], f"{pair.candidate_rank:,}", pair.candidate_score),
            "relevant": Ranked(things[pair.relevant], f"{pair.relevant_rank:,}", pair.relevant_score, True),
        }

    def pairs(self, query: Mapping[str, str], run: str, task: str, form: str) -> Page:
        """The same as a list to keep."""
        shown_run = self._run(run)
        name = self._task([shown_run], task)
        found = self._found(shown_run, name, math.inf)
        if found is None:
            raise NotFoundError("The items of this task cannot be read, so that nothing can be compared.")
        pairs = found.pairs()
        if form == "csv":
            return Page(
                as_csv(pairs).encode("utf-8", "replace"),
                "text/csv; charset=utf-8",
                download=f"{task}-false-negatives.csv",
            )
        body = json.dumps({"run": shown_run.key, "task": name, "pairs": as_rows(pairs)}, indent=2).encode()
        return Page(body, "application/json", download=f"{task}-false-negatives.json")

    # --- media ----------------------------------------------------------------------------------------------------

    def medium(self, query: Mapping[str, str], root: str, name: str, ending: str) -> Page:
        """A medium as it lies in the data; a picture that browsers do not show, as PNG."""
        from omnirecall.view.media import SHOWN_TYPES, head, kind_of

        ref = self.site.medium(root, name)
        if isinstance(ref, Path) and ref.is_dir():
            raise NotFoundError("A folder of frames is shown frame by frame.")
        kind = kind_of(head(ref))
        if ending == "png" and kind not in PICTURES:
            return Page(picture_png(ref), "image/png", fresh=False)
        if not kind:
            return Page(kind=UNKNOWN, ref=ref, download="medium", fresh=False)
        return Page(kind=SHOWN_TYPES[kind], ref=ref, fresh=False)

    def _frames(self, root: str, name: str, policy: str) -> FramesShown:
        ref = self.site.medium(root, name)
        known = self.site.policies().get(policy)
        if known is None:
            raise UserError("no task that is shown gives frames in this way")
        return self.site.frames.frames(name, ref, known)

    def frames(self, query: Mapping[str, str], root: str, name: str, policy: str) -> Page:
        """Which frames of a video the model saw."""
        shown_frames = self._frames(root, name, policy)
        about = {
            "decodable": shown_frames.decodable,
            "width": shown_frames.width,
            "height": shown_frames.height,
            "warnings": list(shown_frames.warnings),
            "left_out": shown_frames.left_out,
            "frames": [
                {"index": frame.index, "time": frame.time, "source": f"{place}.png"}
                for place, frame in enumerate(shown_frames.frames)
            ],
        }
        return Page(json.dumps(about).encode(), "application/json", fresh=False)

    def frame(self, query: Mapping[str, str], root: str, name: str, policy: str, place: str) -> Page:
        """One frame, pixel for pixel as the model saw it."""
        frames = self._frames(root, name, policy).frames
        if int(place) >= len(frames):
            raise UserError(f"the video gives {len(frames)} frames")
        return Page(frames[int(place)].png, "image/png", fresh=False)


def _paired(ranks: Ranks, two: Compared) -> dict[str, Any] | None:
    """The test of the first run against the second on the queries of both, as the page words it."""
    both = two.rows >= 0
    if not both.any():
        return None
    first, second = two.ranks.value[two.rows[both]], ranks.value[both]
    found = paired_task(ranks.measure, first, second, clusters_of(ranks)[both])
    scale = 1 if ranks.measure.name == "median_rank" else 100
    interval = (
        None if found.low is None or found.high is None else f"{scale * found.low:+.2f} to {scale * found.high:+.2f}"
    )
    p = "less than 0.0001" if found.p < 0.0001 else f"{found.p:.4f}"
    counts = {"wins": found.wins, "losses": found.losses, "ties": found.ties}
    return {
        "points": f"{scale * found.difference:+.2f}",
        "interval": interval,
        "p": p,
        "method": found.method,
        **counts,
    }


def _curve_rows(charts: Sequence[Mapping[str, Any]]) -> list[tuple[int, list[Any]]]:
    """(k, the point of each run at k, or None) for every k that a curve has."""
    curves_ = [{point["k"]: point for point in chart["curves"]} for chart in charts]
    return [(k, [curve.get(k) for curve in curves_]) for k in sorted({k for curve in curves_ for k in curve})]


def _breakable(text: str) -> Markup:
    """Text that may be broken after the marks inside names."""
    return Markup("<wbr>").join(re.split(r"(?<=[-+_.,/])(?=\w)", text))


def _script_data(value: Any) -> Markup:
    """JSON for a script element of type application/json: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
