"""Decoding ahead keeps order, holds no more than it may, and gives each job its own error."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from omnirecall.media.ahead import QUEUE, ahead


def test_order_is_kept() -> None:
    def slow(number: int) -> int:
        time.sleep(0.02 if number % 5 == 0 else 0)
        return number

    found = [(job, future.result()) for job, future in ahead(range(40), slow, lambda _: 1, workers=4)]
    assert found == [(number, number) for number in range(40)]


def test_an_error_comes_with_its_own_job_and_the_rest_goes_on() -> None:
    def decode(number: int) -> int:
        if number in {3, 4}:
            raise ValueError(f"job {number}")
        return number

    seen = []
    for job, future in ahead(range(8), decode, lambda _: 1, workers=3):
        if job in {3, 4}:
            with pytest.raises(ValueError, match=f"job {job}"):
                future.result()
        else:
            assert future.result() == job
        seen.append(job)
    assert seen == list(range(8))


@pytest.mark.parametrize("room", [1, 25, 100])
def test_bytes_that_wait_are_bounded(room: int) -> None:
    """Every job is of 10 bytes; what is decoded and not handed over never exceeds the room, save the job that is due."""
    lock, waiting, most = threading.Lock(), 0, 0

    def decode(number: int) -> bytes:
        nonlocal waiting, most
        with lock:
            waiting += 10
            most = max(most, waiting)
        return bytes(10)

    with closing(ahead(range(60), decode, len, workers=2, held_bytes=room)) as stream:
        for number, (job, _) in enumerate(stream):
            assert job == number
            with lock:
                waiting -= 10
                if number == 2:
                    most = waiting  # the first jobs are begun before any size is known
            time.sleep(0.002)
    assert 10 <= most <= max(room, 10) + 10


def test_work_goes_on_while_the_caller_is_busy() -> None:
    done: list[int] = []
    stream = ahead(range(10), lambda number: done.append(number) or number, lambda _: 1, workers=2)
    next(stream)
    next(stream)
    time.sleep(0.2)
    assert len(done) > 2
    stream.close()


def test_small_jobs_do_not_pile_up_without_end() -> None:
    taken = 0

    def jobs() -> object:
        nonlocal taken
        for number in range(10_000):
            taken += 1
            yield number

    with closing(ahead(jobs(), lambda number: number, lambda _: 1, workers=2)) as stream:
        for _ in range(5):
            next(stream)
        time.sleep(0.05)
        assert taken <= 5 + 2 * QUEUE + 1


def test_a_caller_that_stops_leaves_no_work_behind() -> None:
    begun: list[int] = []

    def decode(number: int) -> int:
        begun.append(number)
        time.sleep(0.01)
        return number

    with closing(ahead(range(1000), decode, lambda _: 1, workers=2)) as stream:
        next(stream)
    after = len(begun)
    time.sleep(0.1)
    assert len(begun) == after < 1000
