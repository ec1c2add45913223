"""The audit of a suite's data: what would change a score is found before a model is run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from omnirecall.errors import UserError
from omnirecall.progress import Progress
from omnirecall.protocol.items import MEDIA, Item, MediaRef, TaskData
from omnirecall.protocol.suites import Suite, Task
from omnirecall.sources.checks import other_pools
from omnirecall.sources.load import LAYOUTS, checked
from omnirecall.sources.media_check import Finding, Journal, is_there, look_at_all, media_of
from omnirecall.sources.packed import place_of
from omnirecall.sources.tables import NoDataError

EXAMPLES = 5
JOURNAL = ".omnirecall-check.jsonl"
HANDLED = {
    "duplicate-row": "rows that repeat an earlier one",
    "duplicate-candidate": "repeated entries in lists of candidates, each of which counts once",
    "empty-text": "items without text where there should be some",
    "image-token-in-text": "instructions of text queries that hold the image token",
}
"""Defects that readers meet and handle."""

Looks = Mapping[tuple[str, MediaRef], Finding]


class Issue(msgspec.Struct, frozen=True):
    """One kind of thing that was found. ``fails``: it would change a score, or the data are not those that the card describes."""

    kind: str
    count: int
    what: str
    fails: bool = True
    expected: int | None = None
    examples: tuple[str, ...] = ()


class TaskAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one task."""

    task: str
    queries: int = 0
    query_count: int | None = None
    candidates: int = 0
    candidate_count: int | None = None
    media: int = 0
    issues: tuple[Issue, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether any issue does."""
        return any(issue.fails for issue in self.issues)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of the tasks of a suite."""

    suite: str
    data_root: str
    fails: bool
    tasks: tuple[TaskAudit, ...]


def audit(
    suite: Suite,
    tasks: Sequence[Task],
    root: Path,
    *,
    progress: Progress,
    journal: Path | None = None,
    quick: bool = False,
) -> Audit:
    """Check the data of the tasks under ``root``. ``quick`` only sees whether media are there, and decodes none.

    What is found of each medium is written to ``journal`` (by default a file under ``root``), so that a stopped check goes on.
    """
    root = root.resolve()
    kept = Journal(None if quick else journal or root / JOURNAL)
    found = tuple(_audit_task(task, root, kept, progress, quick) for task in tasks)
    return Audit(suite=suite.name, data_root=str(root), fails=any(one.fails for one in found), tasks=found)


def _audit_task(task: Task, root: Path, journal: Journal, progress: Progress, quick: bool) -> TaskAudit:
    layout = str(task.data.get("layout", "folder"))
    try:
        data = LAYOUTS[layout](root, task)
    except NoDataError as error:
        return TaskAudit(task=task.name, issues=(Issue("no-data", 1, str(error)),))
    except UserError as error:
        return TaskAudit(task=task.name, issues=(Issue("unreadable", 1, str(error)),))
    total = sum(1 for _ in media_of(_items(data), task.media))
    with progress(task.name, total) as advance:
        if quick:
            looks: Looks = {
                (medium.part, medium.ref): Finding(missing=not is_there(medium.ref))
                for medium in media_of(_items(data), task.media)
            }
        else:
            looks = look_at_all(media_of(_items(data), task.media), journal, advance)
    issues = [
        *_counts(data, task),
        *_defects(data, task),
        *_ids(data),
        *_outside(data, task),
        *_media(data, task, looks),
        *_copies(data, looks),
    ]
    if not any(issue.kind == "duplicate-id" for issue in issues):
        try:
            checked(data, task)
        except UserError as error:
            issues.append(Issue("refused", 1, str(error)))
    return TaskAudit(
        task=task.name,
        queries=len(data.queries),
        query_count=task.query_count,
        candidates=len(data.candidates),
        candidate_count=task.candidate_count,
        media=len(looks),
        issues=tuple(issues),
    )


def _items(data: TaskData) -> Iterator[Item]:
    yield from data.queries
    yield from data.candidates


def _counts(data: TaskData, task: Task) -> Iterator[Issue]:
    """Counts that are not those of the card; they fail unless the card itself is unsure."""
    judged = sum(any(grade > 0 for grade in data.judgments.get(item.id, {}).values()) for item in data.queries)
    queries = judged if task.unjudged == "drop" else len(data.queries)
    for key, count, expected in (
        ("query_count", queries, task.query_count),
        ("candidate_count", len(data.candidates), task.candidate_count),
    ):
        if expected is not None and count != expected:
            yield Issue(
                key.replace("_", "-"), count, f"{count:,} where the card has {expected:,}", task.is_sure(key), expected
            )
    if (other := other_pools(data, task)) and data.pools is not None:
        sizes = [len(pool) for pool in data.pools.values()]
        span = f"{min(sizes):,} to {max(sizes):,}"
        what = f"queries whose pool has not the card's {task.pool_size:,} candidates; sizes go from {span}"
        yield Issue("pool-size", len(other), what, task.is_sure("pool_size"), 0, tuple(other[:EXAMPLES]))


def _defects(data: TaskData, task: Task) -> Iterator[Issue]:
    """What readers handle fails only if the card counts it differently."""
    listed = {defect.kind: defect.count for defect in task.known_defects}
    for kind, what in HANDLED.items():
        count, expected = data.defects.get(kind, 0), listed.get(kind)  # type: ignore[call-overload]
        if count or expected:
            yield Issue(kind, count, what, expected is not None and count != expected, expected)


def _listed(task: Task, kind: str, count: int, what: str, examples: Sequence[str]) -> Iterator[Issue]:
    """A defect that fails unless the card lists it, at this count if it gives one."""
    listed = {str(defect.kind): defect.count for defect in task.known_defects}
    if count or listed.get(kind):
        expected = listed.get(kind)
        fails = kind not in listed or (expected is not None and expected != count)
        yield Issue(kind, count, what, fails, expected, tuple(examples[:EXAMPLES]))


def _ids(data: TaskData) -> Iterator[Issue]:
    for role, items in (("queries", data.queries), ("candidates", data.candidates)):
        ids = [item.id for item in items]
        if len(set(ids)) < len(ids):
            twice = [name for name, count in Counter(ids).items() if count > 1]
            yield Issue("duplicate-id", len(twice), f"ids that several {role} have", examples=tuple(twice[:EXAMPLES]))


def _outside(data: TaskData, task: Task) -> Iterator[Issue]:
    known, queries = {item.id for item in data.candidates}, {item.id for item in data.queries}
    outside = []
    for query, row in data.judgments.items():
        pool = known if data.pools is None else set(data.pools.get(query, ()))
        outside += [
            f"{query} {name}" for name, grade in row.items() if grade > 0 and query in queries and name not in pool
        ]
    what = "judgments of candidates that are not in the query's pool; they count as not retrieved"
    yield from _listed(task, "relevant-outside-pool", len(outside), what, outside)


def _media(data: TaskData, task: Task, looks: Looks) -> Iterator[Issue]:
    """Media that are missing or broken, films too short, pictures of one colour."""
    missing: list[str] = []
    broken: list[str] = []
    damaged: list[str] = []
    short: list[str] = []
    constant: list[str] = []
    seen: set[tuple[str, MediaRef]] = set()
    counted = task.media.rule not in ("all", "fps")
    for medium, name in ((medium, item.id) for item in _items(data) for medium in media_of([item], task.media)):
        found = looks[medium.part, medium.ref]
        if found.constant:
            constant.append(name)
        if (medium.part, medium.ref) in seen:
            continue
        seen.add((medium.part, medium.ref))
        place = f"{name}: {place_of(medium.ref)}"
        if found.missing:
            missing.append(place)
        elif found.problem:
            (damaged if found.digest else broken).append(f"{name}: {found.problem}")
        elif counted and 0 < found.frames < task.media.frames:
            short.append(f"{place}: {found.frames}")
    for kind, places, what in (
        ("missing-media", missing, "media that are missing or empty"),
        ("undecodable-media", broken, "media that do not decode"),
        ("damaged-media", damaged, "media that decode in part"),
    ):
        if places:
            yield Issue(kind, len(places), what, examples=tuple(places[:EXAMPLES]))
    if short:
        repeats = task.media.shortage == "repeat"
        what = f"videos with fewer than {task.media.frames} frames" + (
            ", which repeat" if repeats else "; a model gets those it has"
        )
        yield Issue("short-video", len(short), what, repeats, examples=tuple(short[:EXAMPLES]))
    yield from _listed(task, "constant-image", len(constant), "items whose image has one colour", constant)


def _copies(data: TaskData, looks: Looks) -> Iterator[Issue]:
    """Candidates of the same content; they fail where one of them is relevant and the other is not."""
    first: dict[bytes, str] = {}
    groups: dict[bytes, list[str]] = {}
    for item in data.candidates:
        content = _content(item, looks)
        if (name := first.setdefault(content, item.id)) != item.id:
            groups.setdefault(content, [name]).append(item.id)
    if not groups:
        return
    group_of = {name: names for names in groups.values() for name in names}
    unfair = []
    for query in (item.id for item in data.queries):
        relevant = {name for name, grade in data.judgments.get(query, {}).items() if grade > 0}
        left_out = {*relevant, *data.exclude.get(query, ())}
        pool = None if data.pools is None else set(data.pools.get(query, ()))
        copies = {copy for name in relevant for copy in group_of.get(name, ()) if copy not in left_out}
        unfair += [f"{query}: {copy}" for copy in sorted(copies if pool is None else copies & pool)][:1]
    if unfair:
        what = "queries for which a copy of a relevant candidate is not relevant"
        yield Issue("duplicate-content", len(unfair), what, examples=tuple(unfair[:EXAMPLES]))
    elif data.pools is None:
        extra = sum(len(names) - 1 for names in groups.values())
        examples = tuple(" = ".join(names[:2]) for names in list(groups.values())[:EXAMPLES])
        yield Issue("duplicate-content", extra, "candidates that are copies of another", fails=False, examples=examples)


def _content(item: Item, looks: Looks) -> bytes:
    """A hash of what an item is made of; a medium that was not read goes by its place."""
    digest = hashlib.blake2b((item.text or "").encode(), digest_size=12)
    for part in MEDIA:
        if (ref := getattr(item, part)) is not None:
            digest.update(f"\0{part} {looks[part, ref].digest or place_of(ref)}".encode())
    return digest.digest()


def lines(found: Iterable[TaskAudit]) -> Iterator[str]:
    """A sentence for each issue, with examples."""
    for one in found:
        for issue in one.issues:
            counted = "" if issue.kind in ("no-data", "unreadable", "refused") else f"{issue.count:,} "
            said = issue.what if issue.kind.endswith("-count") else f"{counted}{issue.what}"
            listed = (
                ""
                if issue.expected in (None, 0) or issue.kind.endswith("-count")
                else f" (the card lists {issue.expected:,})"
            )
            examples = f": {'; '.join(issue.examples)}" if issue.examples else ""
            mark = "FAILS" if issue.fails else "note"
            yield f"{mark} {one.task}: {issue.kind}: {said}{listed}{examples}"


def as_text(result: Audit) -> str:
    """A table with a row for each task, then a sentence for each issue."""
    import io

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{result.suite} · {result.data_root}"), title_justify="left")
    for column in ("task", "queries", "pool", "media", "state"):
        table.add_column(column, justify="left" if column in ("task", "state") else "right")
    for one in result.tasks:
        kinds = ", ".join(dict.fromkeys(issue.kind for issue in one.issues if issue.fails))
        sizes = (
            f"{count:,}" + ("" if expected in (None, count) else f" of {expected:,}")
            for count, expected in ((one.queries, one.query_count), (one.candidates, one.candidate_count))
        )
        table.add_row(*(Text(cell) for cell in (one.task, *sizes, f"{one.media:,}", kinds or "ok")))
    out = io.StringIO()
    console = Console(file=out, width=120)
    console.print(table)
    text = out.getvalue() + "".join(f"{line}\n" for line in lines(result.tasks))
    failing = sum(one.fails for one in result.tasks)
    return text + (
        f"{failing} of {len(result.tasks)} tasks would not give the suite's score.\n" if failing else "Nothing fails.\n"
    )
