"""What a run does about media that are missing or do not decode: end, or leave their items out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from omnirecall.errors import UserError
from omnirecall.protocol.items import MEDIA, Item, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.media_check import Journal, is_there, look_at_all, media_of
from omnirecall.sources.packed import place_of
from omnirecall.sources.tables import NoDataError

NAMED = 5
"""Items that a deviation names."""


def refuse_missing(task: Task) -> Callable[[Item], None]:
    """A look at an item of the task: UserError if one of its media is not there."""

    def look(item: Item) -> None:
        for part in MEDIA:
            ref = getattr(item, part)
            if ref is not None and not is_there(ref):
                raise UserError(
                    f"task {task.name}: item {item.id}: its {part} {place_of(ref)} is missing or empty; fetch it,"
                    f" or leave such items out with --on-missing skip"
                )

    return look


def without_missing(data: TaskData, task: Task, journal: Journal) -> tuple[TaskData, str]:
    """The rows without the items whose media are missing or do not decode, and a sentence about them, or "".

    Queries left out are in ``skipped``: they count as not retrieved, as relevant candidates left out do. NoDataError if none
    is left.
    """
    found = look_at_all(media_of((*data.queries, *data.candidates), task.media), journal)

    def trouble(item: Item) -> str:
        for medium in media_of([item], task.media):
            finding = found[medium.part, medium.ref]
            if finding.missing or (finding.problem and not finding.digest):
                return (
                    f"its {medium.part} {place_of(medium.ref)} {'is missing' if finding.missing else 'does not decode'}"
                )
        return ""

    skipped = {item.id: reason for item in data.queries if (reason := trouble(item))}
    gone = {item.id for item in data.candidates if trouble(item)}
    if not skipped and not gone:
        return data, ""
    pools = data.pools and {query: [name for name in pool if name not in gone] for query, pool in data.pools.items()}
    for query, pool in (pools or {}).items():
        if not set(pool) - set(data.exclude.get(query, ())):
            skipped.setdefault(query, "nothing is left in its pool")
    kept = replace(
        data,
        queries=[item for item in data.queries if item.id not in skipped],
        candidates=[item for item in data.candidates if item.id not in gone],
        pools=pools and {query: pool for query, pool in pools.items() if query not in skipped},
        exclude={
            query: [name for name in names if name not in gone]
            for query, names in data.exclude.items()
            if query not in skipped
        },
        skipped=skipped,
    )
    if not kept.queries or not kept.candidates:
        raise NoDataError(f"task {task.name}: no query or no candidate has media that decode; fetch its media again")
    queries = [item.id for item in data.queries if item.id in skipped]
    return kept, (
        f"{task.name}: items whose media are missing or do not decode were left out and count as not retrieved:"
        f" {_named('queries', queries)} and {_named('candidates', [item.id for item in data.candidates if item.id in gone])}"
    )


def _named(what: str, names: Sequence[str]) -> str:
    listed = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return f"{len(names)} {what}" + (f" ({listed})" if names else "")
