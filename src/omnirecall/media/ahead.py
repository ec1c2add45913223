"""Decoding ahead of the model: in order, side by side, and never more than fits."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")

DECODERS = min(8, os.cpu_count() or 1)
"""Threads: libav, Pillow and soxr let go of Python's lock while they work, and a film is decoded on one thread."""

HELD_BYTES = 512 << 20
QUEUE = 32
"""Jobs a worker that may wait, however small they are."""


def ahead(
    jobs: Iterable[Job],
    decode: Callable[[Job], Done],
    size: Callable[[Done], int],
    *,
    workers: int = DECODERS,
    held_bytes: int = HELD_BYTES,
) -> Generator[tuple[Job, Future[Done]], None, None]:
    """Each job with its future, in the order of ``jobs``; the future is done, and its ``result()`` raises that job's own error.

    Further jobs are decoded while the caller works. ``size`` gives the bytes of what was decoded; a job that is not done counts
    as the largest seen so far. A job is begun only if all that waits for the caller then stays within ``held_bytes``; before a size
    is known, one job a worker is begun. The job that is due is always begun. Jobs not begun are dropped when the caller stops.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        queue: _Queue[Job, Done] = _Queue(size, workers, held_bytes)
        try:
            for job in jobs:
                while queue.waiting and not queue.has_room():
                    yield queue.next_done()
                queue.waiting.append((job, pool.submit(decode, job)))
            while queue.waiting:
                yield queue.next_done()
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(slots=True)
class _Queue(Generic[Job, Done]):
    """Jobs begun and not yet handed over, in order."""

    size: Callable[[Done], int]
    workers: int
    held_bytes: int
    largest: int = 0
    waiting: deque[tuple[Job, Future[Done]]] = field(default_factory=deque)

    def has_room(self) -> bool:
        """Whether one more job may be begun."""
        sizes = [self.size(future.result()) for _, future in self.waiting if future.done() and not future.exception()]
        self.largest = max([self.largest, *sizes])
        if not self.largest:
            return len(self.waiting) < self.workers
        coming = len(self.waiting) - len(sizes) + 1
        return len(self.waiting) < QUEUE * self.workers and sum(sizes) + coming * self.largest <= self.held_bytes

    def next_done(self) -> tuple[Job, Future[Done]]:
        """The job that is due, once it is done."""
        job, future = self.waiting.popleft()
        if not future.exception():
            self.largest = max(self.largest, self.size(future.result()))
        return job, future
