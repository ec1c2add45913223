"""From planned items to stored vectors: decode ahead, encode, check, store."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from omnirecall.embedding.plan import Distinct
from omnirecall.embedding.segments import NO_NOTE, Note
from omnirecall.embedding.store import Store, Vectors
from omnirecall.errors import RunError, UserError
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Embedder, Encoded, Role
from omnirecall.ranking import BFloat16, Ragged
from omnirecall.ranking.inputs import widen


@dataclass(frozen=True, slots=True)
class Embedded:
    """How much of a plan was embedded now, out of how many distinct items, and how the time went.

    ``seconds``: of embedding, of which the model ``waited`` so many for items to be decoded. ``splits``: batches that ran out of
    memory and were done in parts, each in a sentence.
    """

    now: int
    planned: int
    seconds: float = 0.0
    waited: float = 0.0
    splits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """A batch's vectors, checked, with what must be known of each item, and the sentences on splits."""

    vectors: Vectors
    notes: Sequence[Note]
    splits: tuple[str, ...] = ()


Results = Iterator[tuple[range, Done, float]]
"""Batches as they are done, in any order, each with the seconds for which a model waited for it to be decoded."""
Engine = Callable[[Distinct, Sequence[range]], Results]
"""Does the batches of a plan."""


def embed(
    distinct: Distinct, store: Store, engine: Engine, advance: Callable[[int], None] = lambda _: None
) -> Embedded:
    """Embed every batch of the plan that the store lacks, each whole; ``advance`` is told of items done.

    UserError for a medium that does not decode, or for a vector that no cosine can be taken of; RunError where the work failed.
    What is done by then is stored.
    """
    missing = store.lacks(distinct.keys)
    todo = distinct.todo(missing)
    count = sum(len(batch) for batch in todo)
    advance(len(distinct) - count)
    begin, waited, splits = time.perf_counter(), 0.0, []
    try:
        with closing(_generator(engine(distinct, todo))) as results:
            for batch, done, idle in results:
                _keep(store, distinct, batch, missing, done)
                waited += idle
                splits += done.splits
                advance(len(batch))
    finally:
        store.close()
    seconds = time.perf_counter() - begin if todo else 0.0
    return Embedded(count, len(distinct), round(seconds, 3), round(waited, 3), tuple(splits))


def _generator(results: Results) -> Any:
    yield from results


def _keep(store: Store, distinct: Distinct, batch: range, missing: Any, done: Done) -> None:
    """Store a batch. What is stored already stays: another batch may round it otherwise, and the order of runs would show."""
    new: Any = np.flatnonzero(missing[batch.start : batch.stop])
    keys = distinct.keys[batch.start : batch.stop]
    if len(new) < len(batch):
        store.append(keys[new], picked(done.vectors, new), [done.notes[row] for row in new])
    else:
        store.append(keys, done.vectors, done.notes)


def picked(vectors: Vectors, rows: Any) -> Vectors:
    """The vectors of some items."""
    if isinstance(vectors, BFloat16):
        return BFloat16(vectors.bits[rows])
    if isinstance(vectors, Ragged):
        starts, counts = vectors.offsets[rows], np.diff(vectors.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        tokens = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        return Ragged(picked(vectors.values, tokens), offsets)
    kept: Vectors = vectors[rows]
    return kept


@dataclass(slots=True)
class Sizes:
    """The most items of each group that go to the model at once, where its memory has run out."""

    most: dict[frozenset[str], int] = field(default_factory=dict)


def encoded(model: Embedder, items: Sequence[DecodedItem], role: Role, sizes: Sizes) -> Done:
    """The items' vectors, checked.

    Where memory runs out, the batch is done in halves, and so are those of its kind that follow. RunError where one item is too
    much. UserError names the item whose vector is wrong.
    """
    kind = items[0].modalities
    step = min(len(items), sizes.most.get(kind, len(items)))
    parts: list[Vectors] = []
    notes: list[Note] = []
    splits: list[str] = []
    start = 0
    while start < len(items):
        part, fits = items[start : start + step], True
        try:
            given = model.encode(part, role=role)
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            if len(part) == 1:
                raise RunError(f"model {model.name}: one item, {part[0].id}, is more than its memory holds") from None
            fits = False
        if not fits:  # out of the handler, whose error holds on to what the model had made
            sizes.most[kind] = step = (len(part) + 1) // 2
            splits.append(f"memory ran out at {len(part)} {'+'.join(sorted(kind))} items; done {step} at a time")
            _free_memory()
            continue
        vectors = given.vectors if isinstance(given, Encoded) else given
        parts.append(checked_vectors(vectors, model, part))
        notes += _notes(given, model, part)
        start += len(part)
    return Done(parts[0] if len(parts) == 1 else joined(parts), notes, tuple(splits))


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's own error, or torch's of any device, which is a RuntimeError."""
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)


def _free_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _notes(given: object, model: Embedder, items: Sequence[DecodedItem]) -> list[Note]:
    cut = frames = [0] * len(items)
    if isinstance(given, Encoded):
        cut, frames = list(given.tokens_cut) or cut, list(given.frame_tokens) or frames
    if not len(cut) == len(frames) == len(items):
        raise UserError(
            f"model {model.name}: gave tokens_cut of {len(cut)} and frame_tokens of {len(frames)} for {len(items)} items"
            f" beginning with {items[0].id}; each has one number an item, or none at all"
        )
    said = zip((item.warnings for item in items), map(int, cut), map(int, frames), strict=True)
    return [Note(*one) if any(one) else NO_NOTE for one in said]


def joined(parts: Sequence[Vectors]) -> Vectors:
    """Vectors of consecutive items as one."""
    if isinstance(parts[0], Ragged):
        ends = np.cumsum([0, *(part.offsets[-1] for part in parts)])  # type: ignore[union-attr]
        offsets = [part.offsets[1:] + end for part, end in zip(parts, ends, strict=False)]  # type: ignore[union-attr]
        values = joined([part.values for part in parts])  # type: ignore[union-attr]
        return Ragged(values, np.concatenate([[0], *offsets]))
    if isinstance(parts[0], BFloat16):
        return BFloat16(np.concatenate([part.bits for part in parts]))  # type: ignore[union-attr]
    return np.concatenate(parts)  # type: ignore[arg-type]


def checked_vectors(vectors: object, model: Embedder, items: Sequence[DecodedItem]) -> Vectors:
    """The vectors as they are stored, or UserError naming the item whose vector is NaN, infinite, zero or of another length."""
    first = f"{len(items)} items beginning with {items[0].id}"
    late = getattr(model, "late_interaction", False)
    if late != isinstance(vectors, Ragged):
        kind = "Ragged, a vector for each token," if late else "one vector an item"
        raise UserError(f"model {model.name}: gave {type(vectors).__name__} for {first}; {kind} is expected")
    if isinstance(vectors, Ragged):
        offsets = np.asarray(vectors.offsets)
        if not _rise_from_zero(offsets, len(items)):
            raise UserError(
                f"model {model.name}: gave offsets {offsets.ravel()[:4].tolist()}... for {first}; whole numbers that rise from 0"
                f" are expected, one more than items"
            )
        vectors = replace(vectors, offsets=offsets.astype(np.int64))
        values = vectors.values
    else:
        values = vectors
    values, wide = _floating(values, model, items)
    expected = (int(vectors.offsets[-1]) if isinstance(vectors, Ragged) else len(items), model.dimension)
    if wide.shape != expected:
        raise UserError(f"model {model.name}: gave an array of shape {wide.shape} for {first}; {expected} is expected")
    for what, wrong in (
        ("NaN", np.isnan(wide).any(1)),
        ("infinite", np.isinf(wide).any(1)),
        ("zero", ~wide.any(1)),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            if isinstance(vectors, Ragged):
                row = int(np.searchsorted(vectors.offsets, row, side="right")) - 1
            raise UserError(
                f"model {model.name}: the vector of item {items[row].id} is {what}; nothing can be ranked by it"
            )
    return replace(vectors, values=values) if isinstance(vectors, Ragged) else values


def _rise_from_zero(offsets: Any, count: int) -> bool:
    if offsets.shape != (count + 1,) or offsets.dtype.kind not in "iu":
        return False
    rising = offsets.astype(np.int64)
    return bool(rising[0] == 0 and (np.diff(rising) > 0).all())


def _floating(values: Any, model: Embedder, items: Sequence[DecodedItem]) -> tuple[Any, Any]:
    """A matrix in a dtype that is stored, float64 rounded to float32, and the same to look at as float."""
    if isinstance(values, BFloat16):
        return values, widen(np.asarray(values.bits))
    try:
        matrix = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # as for a tensor on a device, or that asks for a gradient
        raise UserError(
            f"model {model.name}: gave {type(values).__name__} for item {items[0].id}, which is no matrix: {error}"
        ) from None
    if matrix.dtype.kind != "f":
        raise UserError(
            f"model {model.name}: gave {matrix.dtype} vectors for item {items[0].id}; floating point is expected"
        )
    if matrix.dtype != np.float16:
        with np.errstate(over="ignore"):
            matrix = matrix.astype(np.float32, copy=False)
    return matrix, matrix
