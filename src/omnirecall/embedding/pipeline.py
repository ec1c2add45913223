"""From planned items to stored vectors: decode ahead, encode, check, store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from omnirecall.embedding.plan import Job, Plan
from omnirecall.embedding.store import Store
from omnirecall.errors import UserError
from omnirecall.media.ahead import ahead
from omnirecall.media.decode import decode_item
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Encoded


@dataclass(frozen=True, slots=True)
class Embedded:
    """How much of a plan was embedded now, out of how many distinct items."""

    now: int
    planned: int


def embed(plan: Plan, store: Store, advance: Callable[[int], None] = lambda _: None) -> Embedded:
    """Embed every batch of the plan that the store lacks, each whole; ``advance`` is told of items done.

    UserError for a medium that does not decode, or for a vector that no cosine can be taken of.
    """
    todo = [batch for batch in plan.batches() if not store.holds_all(job.key for job in batch)]
    advance(len(plan.jobs) - sum(len(batch) for batch in todo))
    for batch, items in _decoded_ahead(todo, plan.model.sampling_rate):
        given = plan.model.encode(items, role=batch[0].role)
        emitted = np.asarray(given.vectors if isinstance(given, Encoded) else given)
        vectors = checked_vectors(emitted, plan, batch)
        # A vector that is stored already stays: another batch may round it otherwise, and then the order of runs would show.
        new = [row for row, job in enumerate(batch) if job.key not in store]
        store.append([batch[row].key for row in new], vectors[new], [items[row].warnings for row in new])
        advance(len(batch))
    return Embedded(sum(len(batch) for batch in todo), len(plan.jobs))


def _decoded_ahead(batches: Sequence[list[Job]], sampling_rate: int) -> Iterator[tuple[list[Job], list[DecodedItem]]]:
    """Each batch with its items decoded, the next one decoding while the caller works."""

    def decode(job: Job) -> DecodedItem:
        return decode_item(job.item, job.media, sampling_rate, job.instruction)

    jobs = (job for batch in batches for job in batch)
    with closing(ahead(jobs, decode, lambda item: item.nbytes)) as decoded:
        for batch in batches:
            yield batch, [future.result() for _, future in islice(decoded, len(batch))]


def checked_vectors(vectors: NDArray[np.float32], plan: Plan, batch: Sequence[Job]) -> NDArray[np.float32]:
    """The vectors as float32, or UserError naming the item whose vector is then NaN, infinite, zero or of another length."""
    name, vectors = plan.model.name, np.asarray(vectors)
    expected = (len(batch), plan.model.dimension)
    if vectors.shape != expected:
        raise UserError(
            f"model {name}: gave an array of shape {vectors.shape} for {len(batch)} items beginning with {batch[0].item.id};"
            f" {expected} is expected"
        )
    if vectors.dtype.kind != "f":
        raise UserError(
            f"model {name}: gave {vectors.dtype} vectors for item {batch[0].item.id}; floating point is expected"
        )
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32, copy=False)
    for what, wrong in (
        ("NaN", np.isnan(vectors).any(1)),
        ("infinite", np.isinf(vectors).any(1)),
        ("zero", ~vectors.any(1)),
    ):
        if wrong.any():
            raise UserError(
                f"model {name}: the vector of item {batch[int(wrong.argmax())].item.id} is {what}; nothing can be ranked by it"
            )
    return vectors
