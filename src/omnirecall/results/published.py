"""Published rows beside a run: which values may stand there, and what must be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.cards import nearest, read_card, shipped_card, shipped_cards
from omnirecall.protocol.published.rows import published_rows, read_published
from omnirecall.protocol.suites import Suite
from omnirecall.results.record import Run


class PublishedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One model in one source. ``values``: fractions by task or mean; ``differs``: names measured on other data or in another way;
    ``misprints``: names whose printed value contradicts the rest of its row; ``seen``: what of the domain was in the training data.
    """

    model: str
    source: str
    values: Mapping[str, float]
    seen: str = ""
    differs: tuple[str, ...] = ()
    misprints: tuple[str, ...] = ()
    note: str = ""

    @property
    def sound(self) -> dict[str, float]:
        """The values that are neither of another protocol nor misprinted."""
        return {
            name: value
            for name, value in self.values.items()
            if name not in self.differs and name not in self.misprints
        }


def published_beside(run: Run, globs: Sequence[str] = ()) -> list[PublishedColumn]:
    """The published rows of the run's suite, those whose model matches a glob if there are any.

    Nothing that rests on a task with an ``unknown`` fact is among them. UserError where the suite has no published rows, where its
    card is not the one that the run was made with, or where a glob matches none.
    """
    columns = _columns(_shipped(run))
    if not columns:
        raise UserError(f"--published: no published rows of {run.suite} are known; leave it out")
    if not globs:
        return columns
    for glob in globs:
        if not any(fnmatchcase(column.model, glob) for column in columns):
            models = list(dict.fromkeys(column.model for column in columns))
            raise UserError(
                f"--model {glob}: no published row of {run.suite} is of such a model{nearest(glob, models)}"
            )
    return [column for column in columns if any(fnmatchcase(column.model, glob) for glob in globs)]


def _shipped(run: Run) -> Suite:
    if run.suite not in shipped_cards():
        raise UserError(f"--published: no published rows of {run.suite} are known; leave it out")
    suite = read_card(shipped_card(run.suite))
    if suite.revision != run.card:
        raise UserError(
            f"--published: {run.folder} was run on another version of the card {run.suite} than this one, whose published rows"
            f" need not fit; run it again, which embeds nothing anew"
        )
    return suite


def _columns(suite: Suite) -> list[PublishedColumn]:
    names = {*suite.task_names(), *(mean.name for mean in suite.means)}
    names -= {name for name in names if suite.unknown_below(name)}
    rows = list(read_published(suite.name))
    for name, taken in suite.included.items():
        if name in shipped_cards():
            rows += [
                msgspec.structs.replace(row, values={key: row.values[key] for key in row.values if key in taken})
                for row in published_rows(read_card(shipped_card(name)))
            ]
    columns = [
        PublishedColumn(
            model=row.model,
            source=row.source,
            values={name: row.share(name) for name in row.values if name in names},
            seen=row.seen,
            differs=tuple(name for name in row.differs if name in names),
            misprints=tuple(name for name in row.misprints if name in names),
            note=row.note,
        )
        for row in rows
    ]
    return [column for column in columns if column.values]
