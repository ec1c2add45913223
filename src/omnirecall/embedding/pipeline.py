"""From planned items to stored vectors: decode ahead, encode, check, store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnirecall.embedding.plan import Job, Plan
from omnirecall.embedding.store import Store
from omnirecall.errors import UserError
from omnirecall.media.decode import decode_item
from omnirecall.media.types import DecodedItem

DECODERS = 2


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
        vectors = plan.model.encode(items, role=batch[0].role)
        store.append([job.key for job in batch], checked_vectors(vectors, plan, batch))
        advance(len(batch))
    return Embedded(sum(len(batch) for batch in todo), len(plan.jobs))


def _decoded_ahead(batches: Sequence[list[Job]], sampling_rate: int) -> Iterator[tuple[list[Job], list[DecodedItem]]]:
    """Each batch with its items decoded, the next one decoding while the caller works."""

    def decode(job: Job) -> DecodedItem:
        return decode_item(job.item, job.media, sampling_rate, job.instruction)

    with ThreadPoolExecutor(DECODERS) as pool:
        ahead = [pool.submit(decode, job) for job in batches[0]] if batches else []
        for number, batch in enumerate(batches):
            items = [future.result() for future in ahead]
            following = batches[number + 1] if number + 1 < len(batches) else []
            ahead = [pool.submit(decode, job) for job in following]
            try:
                yield batch, items
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def checked_vectors(vectors: NDArray[np.float32], plan: Plan, batch: Sequence[Job]) -> NDArray[np.float32]:
    """The vectors, or UserError naming the item whose vector is NaN, infinite, zero or of another length."""
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
