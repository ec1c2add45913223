"""Batch after batch in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice

from omnirecall.embedding.pipeline import Results, Sizes, encoded
from omnirecall.embedding.plan import Distinct, Job
from omnirecall.media.ahead import ahead
from omnirecall.media.decode import decode_item
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Embedder


def local(distinct: Distinct, todo: Sequence[range]) -> Results:
    """Batch after batch in this process, the next ones decoding while the model works."""
    model, sizes = distinct.plan.model, Sizes()

    def decode(rows: range) -> list[DecodedItem]:
        return [decoded(job, model) for job in distinct.jobs(rows)]

    pieces = (piece for batch in todo for piece in distinct.pieces(batch))
    with closing(ahead(pieces, decode, lambda items: sum(item.nbytes for item in items))) as coming:
        for batch in todo:
            begin = time.perf_counter()
            items = [item for _, future in islice(coming, len(distinct.pieces(batch))) for item in future.result()]
            idle = time.perf_counter() - begin
            yield batch, encoded(model, items, distinct.role(batch), sizes), idle


def decoded(job: Job, model: Embedder) -> DecodedItem:
    """A job's item as its model takes it; a model of vectors by id gets the id and the task alone.

    UserError if the item is not what was planned any more.
    """
    if getattr(model, "by_id", False):
        return DecodedItem(job.planned.id, text="", task=job.task)
    item = decode_item(job.item, job.media, model.sampling_rate, job.instruction)
    job.refuse_changed(model)
    return item
