"""A run of 50,000 queries: its pages are whole, and the server stays small."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from omnirecall.protocol.measures import RankedJudgments
from omnirecall.results.record import ModelRecord, RankTable, Run, TaskRecord, rank_table, write_parquet, write_run
from omnirecall.sources.load import load_suite

QUERIES, POOL = 50_000, 20_000


def write_large(folder: Path, seed: int) -> Path:
    """A run of random ranks over own data of so many queries, and the data if they are not there; the run's folder."""
    random = np.random.default_rng(seed)
    data = folder / "data"
    if not data.exists():
        data.mkdir(parents=True)
        words = ("river", "stone", "amber", "cloud", "violin", "train", "paper", "lamp")
        texts = random.integers(0, len(words), (QUERIES, 6))
        with (data / "queries.jsonl").open("w") as file:
            file.writelines(
                json.dumps({"id": f"q{row}", "text": " ".join(words[word] for word in texts[row])}) + "\n"
                for row in range(QUERIES)
            )
        with (data / "candidates.jsonl").open("w") as file:
            file.writelines(json.dumps({"id": f"c{row}", "text": f"answer {row}"}) + "\n" for row in range(POOL))
        with (data / "qrels.tsv").open("w") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            file.writelines(f"q{row}\tc{row % POOL}\t1\n" for row in range(QUERIES))
        (data / "task.toml").write_text('name = "large"\nmeasure = "hit@10"\n')
    greater = np.minimum(random.geometric(0.01, QUERIES) - 1, POOL - 1).astype(np.int64)
    top = random.integers(0, POOL, (QUERIES, 10))
    scores = np.sort(random.random((QUERIES, 10)))[:, ::-1]
    table = RankTable(
        query_ids=[f"q{row}" for row in range(QUERIES)],
        clusters=[None] * QUERIES,
        relevant_ids=[f"c{row % POOL}" for row in range(QUERIES)],
        ranked=RankedJudgments(
            np.arange(QUERIES + 1), np.ones(QUERIES), greater, np.zeros(QUERIES, np.int64), np.full(QUERIES, POOL)
        ),
        positive_scores=random.random(QUERIES) / 2,
        top_ids=[[f"c{candidate}" for candidate in row] for row in top.tolist()],
        top_scores=scores.tolist(),
    )
    suite = load_suite(data)
    run = folder / "runs" / "large" / f"model{seed}-0"
    write_parquet(run / "tasks" / "large.parquet", rank_table(table))
    value = float((greater < 10).mean())
    task = TaskRecord(status="ok", measure="hit@10", value=value, best=value, worst=value, queries=QUERIES, pool=POOL)
    write_run(
        run,
        Run(
            omnirecall="0.1.0",
            suite="large",
            card=suite.revision,
            model=ModelRecord(f"model{seed}", "x", 8, ("text",)),
            tasks={"large": task},
            means={},
            identity=f"{seed}",
            data_root=str(data),
        ),
    )
    return run


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two such runs of the same data."""
    folder = tmp_path_factory.mktemp("large")
    for seed in (1, 2):
        write_large(folder, seed)
    return folder / "runs"


def test_fifty_thousand_queries(large: Path, serve: Callable[..., Any]) -> None:
    server = serve(large)

    def get(path: str) -> str:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        for _ in range(60):
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, (path, text)
            if "data-waiting" not in text:
                break
        connection.close()
        return text

    base = "/r/model1-0/t/large/"
    assert "50,000 of 50,000 queries" in get(base)
    assert "Page 5,000 of 5,000" in get(f"{base}all/5000/")
    assert get(base).count("<article") == 10
    assert len(get(base)) < 100_000
    assert "model1 against model2" in get(f"{base}vs/model2-0/worse/300/")
    found = re.search(r"([\d,]+) of 50,000 queries", get(f"{base}?q=amber+cloud&sort=id"))
    assert found is not None
    assert 0 < int(found[1].replace(",", "")) < 50_000
    assert "Recall at every k" in get("/s/large/t/large/")
    assert "Leaderboard" in get("/")
    assert "q49999" in get(f"{base}n/49999/vs/model2-0/")
    assert server.memory() < 300
    assert pa.__version__
