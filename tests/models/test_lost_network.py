"""A network that goes away in the middle of a run: it ends with a sentence, and the next one goes on from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from endpoint_server import DIMENSION, Fault, serving

from omnirecall.errors import RunError
from omnirecall.evaluation import evaluate
from omnirecall.models.base import ModelOptions
from omnirecall.models.endpoint import EndpointModel, load

BATCH = 8
LOST = {
    "hangs up": Fault(drop=True),
    "answers in part": Fault(cut=20),
    "unavailable": Fault(status=503),
}


def outcome(out: Path) -> Any:
    """Scores and ranks."""
    (path,) = out.glob("*/*/run.json")
    record = json.loads(path.read_text())
    ranks = pq.read_table(path.parent / "tasks" / "mine.parquet").to_pylist()
    return record["tasks"], record["means"], record["identity"], ranks


@pytest.mark.parametrize("after", [0, 3, 7])
@pytest.mark.parametrize("how", LOST)
def test_a_lost_network_loses_one_batch_at_most(
    how: str, after: int, own_data: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    candidates = [{"id": f"c{row}", "text": f"text number {row}"} for row in range(60)]
    queries = [{"id": f"q{row}", "text": f"question {row}"} for row in range(20)]
    folder = own_data(tmp_path / "data", queries, candidates, [(f"q{row}", f"c{row}", 1) for row in range(20)])
    with serving() as server:

        def model() -> EndpointModel:
            args = {"url": server.url, "dimension": str(DIMENSION), "concurrency": "1"}
            made = load("acme/embed-1", ModelOptions(args=args))
            made.pause = lambda _: None
            return made

        evaluate(model(), folder, out=tmp_path / "undisturbed", batch=BATCH)
        server.asked.clear()
        server.faults, server.always = [Fault() for _ in range(after)], LOST[how]
        with pytest.raises(RunError, match=r"127\.0\.0\.1") as lost:
            evaluate(model(), folder, out=tmp_path / "lost", batch=BATCH)
        assert "\n" not in str(lost.value)
        answered = [text for asked in server.asked[:after] for text in asked.body["input"]]
        server.always = None
        server.asked.clear()
        evaluate(model(), folder, out=tmp_path / "lost", batch=BATCH)
        again = [text for asked in server.asked for text in asked.body["input"]]
    assert len({*answered, *again}) == 80
    assert len(answered) + len(again) - 80 <= BATCH
    assert outcome(tmp_path / "lost") == outcome(tmp_path / "undisturbed")
