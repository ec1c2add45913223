"""Memory does not grow with the items of a run, and columns that lie in files change no result."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from models_of_form import Letters

from omnirecall import columns
from omnirecall.embedding import segments
from omnirecall.evaluation import evaluate
from omnirecall.media.types import DecodedItem
from omnirecall.ranking import vectors
from omnirecall.sources import folder as folder_module


class Forgetful(Letters):
    """A model that does not keep what it was asked."""

    def encode(self, items: Sequence[DecodedItem], *, role: Any) -> Any:
        self.seen.clear()
        self.roles.clear()
        return super().encode(items, role=role)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that runs of a few thousand items meet them."""
    monkeypatch.setattr(columns, "IN_MEMORY", 1 << 12)
    monkeypatch.setattr(columns, "PART", 1 << 9)
    monkeypatch.setattr(columns, "_RUN", 1 << 10)
    monkeypatch.setattr(columns, "_READ", 1 << 16)
    monkeypatch.setattr(columns.parts, "__defaults__", (1 << 9,))
    monkeypatch.setattr(folder_module, "KEPT", 100)
    monkeypatch.setattr(segments, "_TOGETHER", 4)
    monkeypatch.setattr(vectors, "_BLOCK_BYTES", 1 << 14)


def texts(own_data: Callable[..., Path], path: Path, count: int) -> Path:
    """A task of ``count`` short candidates, a third of which are said twice, and 20 queries."""
    candidates = [
        {"id": f"c{row}", "text": f"{row * 7919 % (2 * count // 3)} of {'many ' * (row % 5)}"} for row in range(count)
    ]
    queries = [{"id": f"q{row}", "text": f"question {row}"} for row in range(20)]
    return own_data(path, queries, candidates, [(f"q{row}", f"c{row}", 1) for row in range(20)])


def outcome(out: Path) -> Any:
    """The scores of a run and all of its ranks."""
    (path,) = out.glob("*/*/run.json")
    record = json.loads(path.read_text())
    return record["tasks"], record["identity"], pq.read_table(path.parent / "tasks" / "mine.parquet").to_pylist()


def test_the_same_run_with_columns_in_files(
    own_data: Callable[..., Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    task = texts(own_data, tmp_path / "data", 3000)
    evaluate(Letters(), task, out=tmp_path / "in memory", batch=32)
    request.getfixturevalue("small")
    evaluate(Letters(), task, out=tmp_path / "in files", batch=32)
    assert outcome(tmp_path / "in files") == outcome(tmp_path / "in memory")
    stores = [sorted((tmp_path / kind / ".store").rglob("*.index")) for kind in ("in memory", "in files")]
    assert stores[0][0].read_bytes() == stores[1][0].read_bytes()
    again = evaluate(Letters(), task, out=tmp_path / "in files", batch=32)
    assert again.embedded["now"] == 0


@pytest.mark.usefixtures("small")
def test_memory_does_not_grow_with_items(own_data: Callable[..., Path], tmp_path: Path) -> None:
    """What Python and numpy hold at the peak of each stage; maps of files are not counted."""
    peaks: list[dict[str, int]] = []

    @contextmanager
    def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
        tracemalloc.reset_peak()
        yield lambda _: None
        peaks[-1][what] = tracemalloc.get_traced_memory()[1]

    for count in (500, 16_000, 48_000):  # the first, once, for what is made at first use
        task = texts(own_data, tmp_path / str(count), count)
        peaks.append({})
        tracemalloc.start()
        try:
            evaluate(Forgetful(), task, out=tmp_path / f"runs-{count}", batch=256, progress=progress)
        finally:
            tracemalloc.stop()
    more = {stage: (peaks[2][stage] - peaks[1][stage]) / 32_000 for stage in peaks[2]}
    assert max(more.values()) < 2, f"bytes an item: {more}"
