"""A whole run on own data and on the starter suite, against arithmetic by hand."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import omnirecall
from omnirecall.errors import UserError
from omnirecall.evaluation import evaluate
from omnirecall.media.types import DecodedItem, Samples
from omnirecall.models.load import load_model

STARTER = Path(omnirecall.__file__).parent / "starter"
COLUMNS = [
    "query_id",
    "cluster",
    "pool_size",
    "n_relevant",
    "relevant_ids",
    "grades",
    "greater",
    "tied",
    "positive_scores",
    "top_ids",
    "top_scores",
]


def png(colour: tuple[int, int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(out, "PNG")
    return out.getvalue()


def wav(loud: float) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(np.full(1600, loud * 32767).astype("<i2").tobytes())
    return out.getvalue()


COLOURS = {"red": (250, 10, 20), "green": (20, 200, 30), "blue": (5, 15, 240), "grey": (90, 90, 90)}
SOUNDS = {"low": 0.1, "high": 0.7}
QUERIES = [
    {"id": "q text", "text": "a text"},
    {"id": "q image", "image": "red.png", "cluster": "k"},
    {"id": "q both", "image": "blue.png", "text": "with words", "instruction": "own words"},
    {"id": "q sound", "audio": "low.wav"},
]
CANDIDATES = [
    {"id": "c red", "image": "red.png"},
    {"id": "c red again", "image": "copy of red.png"},
    {"id": "c green", "image": "green.png"},
    {"id": "c grey words", "image": "grey.png", "text": "some words"},
    {"id": "c text", "text": "another text"},
    {"id": "c sound", "audio": "high.wav"},
]
QRELS = [
    ("q text", "c text", 1),
    ("q image", "c red", 2),
    ("q image", "c green", 1),
    ("q both", "c grey words", 1),
    ("q both", "not there", 1),
    ("q sound", "c sound", 1),
    ("q sound", "c red", 0),
]
POOLS = [{"query-id": "q image", "exclude": ["c sound"]}, {"query-id": "q text", "exclude": ["c red", "c green"]}]
TOML = """name = "mine"
measure = "hit@1"
measures = ["mrr", "recall@2"]
instruction = "find it"
"""


@pytest.fixture
def mixed(tmp_path: Path, own_data: Callable) -> Path:
    """Text, pictures, sounds and a composed item in one pool, with exclusions."""
    folder = own_data(tmp_path / "data", QUERIES, CANDIDATES, QRELS, TOML, POOLS)
    for name, colour in COLOURS.items():
        (folder / f"{name}.png").write_bytes(png(colour))
    (folder / "copy of red.png").write_bytes(png(COLOURS["red"]))
    for name, loud in SOUNDS.items():
        (folder / f"{name}.wav").write_bytes(wav(loud))
    return folder


def decoded(row: dict[str, str], instruction: str) -> DecodedItem:
    """A row of the data above as a model gets it, from what the files were made of."""
    colour, loud = row.get("image", "").removeprefix("copy of ").removesuffix(".png"), row.get("audio", "")[:-4]
    return DecodedItem(
        row["id"],
        text=row.get("text"),
        image=Image.new("RGB", (4, 4), COLOURS[colour]) if colour else None,
        audio=Samples(np.full(1600, int(SOUNDS[loud] * 32767) / 32768, np.float32), 16000) if loud else None,
        instruction=instruction,
    )


def of_file(path: str) -> Any:
    """The model that ``py:FILE:Model`` means, imported by hand."""
    spec = importlib.util.spec_from_file_location("by_hand", path.split(":")[1])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model()


def rows_of(folder: str | Path, task: str = "mine") -> list[dict[str, Any]]:
    rows = pq.read_table(Path(folder) / "tasks" / f"{task}.parquet").to_pylist()
    for row in rows:  # None for NaN, which is not equal to itself
        row["positive_scores"] = [None if math.isnan(score) else score for score in row["positive_scores"]]
    return rows


@pytest.mark.parametrize("kind", ["py", "random", "constant"])
def test_values_are_those_of_arithmetic_by_hand(
    kind: str, mixed: Path, tmp_path: Path, model: Callable, ranked_by_hand: Callable
) -> None:
    name = model() if kind == "py" else f"{kind}:8"
    by_hand = of_file(name) if kind == "py" else load_model(name)
    spoken = "find it" if kind == "py" else ""
    candidates = {row["id"]: by_hand.encode([decoded(row, "")], role="candidate")[0] for row in CANDIDATES}
    run = evaluate(name, mixed, out=tmp_path / "runs", top_k=20)
    rows = {row["query_id"]: row for row in rows_of(run.folder)}
    assert list(rows) == [row["id"] for row in QUERIES]
    hits, reciprocals, recalls = [], [], []
    for query in QUERIES:
        instruction = query.get("instruction", spoken) if kind == "py" else ""
        vector = by_hand.encode([decoded(query, instruction)], role="query")[0]
        out = {name for line in POOLS if line["query-id"] == query["id"] for name in line["exclude"]}
        pool = {name: vector for name, vector in candidates.items() if name not in out}
        grades = {c: grade for q, c, grade in QRELS if q == query["id"] and grade}
        row = rows[query["id"]]
        assert row["pool_size"] == len(pool)
        assert dict(zip(row["relevant_ids"], row["grades"], strict=True)) == grades
        assert row["cluster"] == query.get("cluster")
        ranks = []
        for name_of, greater, tied in zip(row["relevant_ids"], row["greater"], row["tied"], strict=True):
            if name_of not in pool:
                assert (greater, tied) == (-1, 0)
                continue
            assert (greater, tied) == ranked_by_hand(vector, pool, name_of), (query["id"], name_of)
            ranks.append((greater, tied))
        assert sorted(row["top_ids"]) == sorted(pool)
        places = {c: sum(ranked_by_hand(vector, pool, c)[:1]) for c in row["top_ids"]}
        assert list(places.values()) == sorted(places.values())
        if kind != "constant":
            assert all(tied == 0 or len(ranks) == 2 for _, tied in ranks)
        # the closed forms for one relevant candidate in a tie; with two, the pictures are not tied with each other
        hits.append(chance_of_top(ranks, 1))
        recalls.append(sum(share_of_top(*rank, 2) for rank in ranks) / len(grades))
        reciprocals.append(expected_reciprocal(ranks))
    task = run.tasks["mine"]
    assert task.measures["hit@1"].value == pytest.approx(statistics.fmean(hits), abs=1e-9)
    assert task.measures["recall@2"].value == pytest.approx(statistics.fmean(recalls), abs=1e-9)
    assert task.measures["mrr"].value == pytest.approx(statistics.fmean(reciprocals), abs=1e-9)
    assert (task.queries, task.pool, task.relevant_outside_pool) == (4, 6, 1)


def share_of_top(greater: int, tied: int, k: int) -> float:
    return min(max(k - greater, 0), tied + 1) / (tied + 1)


def chance_of_top(ranks: list[tuple[int, int]], k: int) -> float:
    """hit@1: the relevant share of the group on top."""
    assert k == 1
    first = [rank for rank in ranks if rank[0] == 0]
    return len(first) / (first[0][1] + 1) if first else 0.0


def expected_reciprocal(ranks: list[tuple[int, int]]) -> float:
    """By every place that the first of the relevant ones of the best group can have."""
    greater, tied = min(ranks)
    together = sum(rank[0] == greater for rank in ranks)
    size, total, left = tied + 1, 0.0, 1.0
    for place in range(size - together + 1):
        here = together / (size - place)
        total += left * here / (greater + place + 1)
        left *= 1 - here
    return total


def test_the_record(mixed: Path, tmp_path: Path) -> None:
    run = evaluate("random:8", mixed, out=tmp_path / "runs")
    folder = Path(run.folder)
    assert folder.parent == tmp_path / "runs" / "mine"
    assert folder.name == f"random_8-{run.identity}"
    assert sorted(path.name for path in folder.rglob("*")) == ["mine.json", "mine.parquet", "run.json", "tasks"]
    record = json.loads((folder / "run.json").read_text())
    needed = {"omnirecall", "suite", "card", "model", "tasks", "means", "deviations", "environment"}
    assert needed <= set(record)
    assert {"name", "fingerprint", "dimension", "modalities"} <= set(record["model"])
    assert record["omnirecall"] == omnirecall.__version__
    assert (record["suite"], record["model"]["name"], record["model"]["dimension"]) == ("mine", "random:8", 8)
    assert record["model"]["modalities"] == ["text", "image", "video", "audio"]
    assert record["means"] == {}
    assert record["deviations"] == []
    assert record["data_root"] == str(mixed)
    task = record["tasks"]["mine"]
    asked = {"status", "measure", "value", "best", "worst", "queries", "pool", "relevant_outside_pool", "measures"}
    assert asked <= set(task)
    assert (task["status"], task["measure"]) == ("ok", "hit@1")
    assert set(task["measures"]) == {"hit@1", "mrr", "recall@2"}
    low, high = task["measures"]["hit@1"]["interval"]
    assert low < task["value"] < high
    keys = ("value", "best", "worst")
    assert [task["measures"]["hit@1"][key] for key in keys] == [task[key] for key in keys]
    assert set(task["hashes"]) == {"queries", "pool", "judgments"}
    assert json.loads((folder / "tasks" / "mine.json").read_text()) == {"task": "mine", **task}
    table = pq.read_table(folder / "tasks" / "mine.parquet")
    assert table.column_names == COLUMNS
    assert table.schema.field("greater").type.value_type == "int64"


def test_the_length_of_ranked_lists(mixed: Path, tmp_path: Path) -> None:
    long = rows_of(evaluate("random:8", mixed, out=tmp_path / "a", top_k=10**9).folder)
    assert [len(row["top_ids"]) for row in long] == [row["pool_size"] for row in long] == [4, 5, 6, 6]
    short = rows_of(evaluate("random:8", mixed, out=tmp_path / "b", top_k=2).folder)
    assert [row["top_ids"] for row in short] == [row["top_ids"][:2] for row in long]
    assert all(row["top_scores"] == sorted(row["top_scores"], reverse=True) for row in long)


NO_ENCODE = "\n    def encode(self, items, *, role):\n        raise AssertionError('embedded again')\n"


def test_a_second_run_embeds_nothing(mixed: Path, tmp_path: Path, model: Callable) -> None:
    first = evaluate(model(), mixed, out=tmp_path / "runs")
    assert (first.embedded["now"], first.embedded["planned"]) == (9, 9)  # the red picture stands for three items
    assert first.embedded["seconds"] >= first.embedded["waited"] >= 0
    second = evaluate(model(NO_ENCODE), mixed, out=tmp_path / "runs")
    assert second.embedded == {"now": 0, "planned": 9, "seconds": 0, "waited": 0, "splits": []}
    assert second.tasks == first.tasks
    assert second.folder == first.folder


def test_what_changed_is_embedded_anew(tmp_path: Path, own_data: Callable, model: Callable) -> None:
    candidates = [{"id": "c1", "image": "a.png"}, {"id": "c2", "text": "due"}, {"id": "c3", "text": "tre"}]
    folder = own_data(tmp_path / "data", candidates=candidates)
    (folder / "a.png").write_bytes(png(COLOURS["red"]))
    options: dict[str, Any] = {"out": tmp_path / "runs", "batch": 1}
    first = evaluate(model(), folder, **options)
    (folder / "a.png").write_bytes(png(COLOURS["blue"]))
    second = evaluate(model(), folder, **options)
    assert second.embedded["now"] == 1
    candidates[1]["text"] = "quattro"
    own_data(folder, candidates=candidates)
    third = evaluate(model(), folder, **options)
    assert third.embedded["now"] == 1
    assert len({run.folder for run in (first, second, third)}) == 3
    scores = [[row["positive_scores"] for row in rows_of(run.folder)] for run in (first, second, third)]
    assert scores[0][0] != scores[1][0] == scores[2][0]
    assert scores[0][1] == scores[1][1] != scores[2][1]


def test_an_instruction_changes_what_hears_it(mixed: Path, tmp_path: Path, model: Callable) -> None:
    options: dict[str, Any] = {"out": tmp_path / "runs", "batch": 1}
    evaluate(model(), mixed, **options, prompt="none")
    evaluate(model(), mixed, **options)
    (mixed / "task.toml").write_text((mixed / "task.toml").read_text().replace("find it", "seek it"))
    none = evaluate(model(), mixed, **options, prompt="none")
    assert none.embedded["now"] == 0
    assert none.tasks["mine"].prompt == "none"
    spoken = evaluate(model(), mixed, **options)
    assert spoken.embedded["now"] == 3  # all queries but the one with words of its own
    assert spoken.tasks["mine"].prompt == "model"
    assert len(list((tmp_path / "runs" / "mine").iterdir())) == 4


def test_roles_are_told_apart_unless_the_model_is_symmetric(
    tmp_path: Path, own_data: Callable, model: Callable
) -> None:
    same = [{"id": "a", "text": "same"}]
    folder = own_data(tmp_path / "data", same, same, [("a", "a", 1)])
    assert evaluate(model(), folder, out=tmp_path / "runs").embedded["planned"] == 1
    lopsided = '\n    symmetric = False\n    fingerprint = "letters-2"\n'
    assert evaluate(model(lopsided), folder, out=tmp_path / "runs").embedded["planned"] == 2


def test_a_limit_takes_queries_only(mixed: Path, tmp_path: Path) -> None:
    whole = evaluate("random:8", mixed, out=tmp_path / "runs")
    limited = evaluate("random:8", mixed, out=tmp_path / "runs", limit=2)
    assert rows_of(limited.folder) == rows_of(whole.folder)[:2]
    assert (limited.tasks["mine"].queries, limited.tasks["mine"].pool) == (2, 6)
    assert limited.deviations == ("only the first 2 queries of each task",)
    assert "only the first 2 queries" in limited.table()
    assert limited.folder != whole.folder


def test_fewer_dimensions(mixed: Path, tmp_path: Path, ranked_by_hand: Callable) -> None:
    run = evaluate("random:8", mixed, out=tmp_path / "runs", dim=3)
    model = load_model("random:8")
    cut = {row["id"]: model.encode([decoded(row, "")], role="candidate")[0][:3] for row in CANDIDATES}
    vector = model.encode([decoded(QUERIES[3], "")], role="query")[0][:3]
    row = rows_of(run.folder)[3]
    assert (row["greater"][0], row["tied"][0]) == ranked_by_hand(vector, cut, "c sound")
    expected = vector @ cut["c sound"] / np.linalg.norm(vector) / np.linalg.norm(cut["c sound"])
    assert row["positive_scores"][0] == pytest.approx(float(expected), abs=1e-6)
    assert run.model.dimension == 3
    assert run.deviations == ("only the first 3 dimensions of each vector",)


def test_dimensions_that_leave_nothing(
    mixed: Path, tmp_path: Path, command: Callable, model: Callable, refused: Callable
) -> None:
    name = model("\n    def one(self, item):\n        return np.eye(8, dtype='f4')[7 if item.audio else 0]\n")
    refused(command("run", mixed, "--model", name, "--dim", "4", "--out", tmp_path / "runs"), "item q sound", "--dim")
    assert not list((tmp_path / "runs").glob("mine"))


SUITE = """[suite]
name = "both"
[[task]]
name = "words"
measure = "hit@1"
data = {queries = "words.jsonl", candidates = "candidates.jsonl", qrels = "words.tsv"}
[[task]]
name = "sounds"
measure = "mrr"
data = {queries = "sounds.jsonl", candidates = "candidates.jsonl", qrels = "sounds.tsv"}
[[mean]]
name = "all"
of = ["of words", "of sounds"]
[[mean]]
name = "of words"
of = ["words"]
[[mean]]
name = "of sounds"
of = ["sounds"]
"""


@pytest.fixture
def suite(mixed: Path, jsonl: Callable) -> Path:
    """Two tasks and means over them."""
    (mixed / "suite.toml").write_text(SUITE)
    jsonl(mixed / "words.jsonl", QUERIES[:1])
    jsonl(mixed / "sounds.jsonl", QUERIES[3:])
    (mixed / "words.tsv").write_text("query-id\tcorpus-id\tscore\nq text\tc text\t1\n")
    (mixed / "sounds.tsv").write_text("query-id\tcorpus-id\tscore\nq sound\tc sound\t1\n")
    return mixed


def test_means_of_a_suite(suite: Path, tmp_path: Path) -> None:
    run = evaluate("random:8", suite, out=tmp_path / "runs")
    words, sounds = run.tasks["words"].value, run.tasks["sounds"].value
    assert words is not None
    assert sounds is not None
    assert run.means["all"].value == (words + sounds) / 2
    assert all(mean.complete for mean in run.means.values())


def test_tasks_left_out(suite: Path, tmp_path: Path, command: Callable, refused: Callable) -> None:
    run = evaluate("random:8", suite, out=tmp_path / "runs", tasks=("s*",))
    assert list(run.tasks) == ["sounds"]
    assert run.means["of sounds"].complete
    for name in ("all", "of words"):
        assert (run.means[name].value, run.means[name].complete, run.means[name].missing) == (None, False, ("words",))
    assert run.deviations == ("1 of 2 tasks left out: words",)
    refused(
        command("run", suite, "--model", "random:8", "--tasks", "s*", "--tasks", "w", "--out", tmp_path), "--tasks w"
    )


def test_what_a_model_does_not_support(suite: Path, tmp_path: Path, model: Callable, command: Callable) -> None:
    deaf = model("\n    def supports(self, modalities):\n        return 'audio' not in modalities\n")
    result = command("run", suite, "--model", deaf, "--out", tmp_path / "runs", "--json")
    assert (result.code, result.err) == (0, "")
    run = result.json
    assert {name: task["status"] for name, task in run["tasks"].items()} == {
        "words": "unsupported",
        "sounds": "unsupported",
    }
    rows = [row for row in CANDIDATES if "audio" not in row]
    (suite / "candidates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = command("run", suite, "--model", deaf, "--out", tmp_path / "more", "--json").json
    task = run["tasks"]["sounds"]
    assert (task["status"], task["value"], task["best"], task["measures"]) == ("unsupported", None, None, {})
    assert task["reason"] == "letters does not embed A (queries)"
    assert (task["queries"], task["pool"]) == (1, 5)
    assert run["tasks"]["words"]["status"] == "ok"
    assert run["model"]["modalities"] == ["text", "image", "video"]
    assert run["means"]["all"] == {"value": None, "complete": False, "missing": ["sounds"]}
    assert run["means"]["of words"]["complete"]
    folder = run["folder"]
    assert json.loads((Path(folder) / "tasks" / "sounds.json").read_text())["status"] == "unsupported"
    assert not (Path(folder) / "tasks" / "sounds.parquet").exists()
    for form in ("table", "markdown", "latex", "csv"):
        text = command("report", folder, "--format", form).out
        assert "unsupported" in text, form
        assert "incomplete" in text, form
        for line in text.splitlines():
            if line.replace("*", "").replace("│", "").replace("|", "").split()[:1] == ["all"]:
                assert not any(char.isdigit() for char in line), (form, line)
    assert "does not embed A" in command("report", folder).out


def test_another_identity_never_overwrites(mixed: Path, tmp_path: Path, model: Callable) -> None:
    out = tmp_path / "runs"
    runs = [
        evaluate("random:8", mixed, out=out, **choice)
        for choice in ({}, {"limit": 1}, {"dim": 2}, {"batch": 1}, {"top_k": 1})
    ]
    runs.append(evaluate("random:9", mixed, out=out))
    judgments = mixed / "qrels.tsv"
    judgments.write_text(judgments.read_text().replace("q image\tc red\t2", "q image\tc red\t3"))
    runs.append(evaluate("random:8", mixed, out=out))
    (mixed / "pools.jsonl").write_text(json.dumps(POOLS[0]) + "\n")
    runs.append(evaluate("random:8", mixed, out=out))
    (mixed / "task.toml").write_text((mixed / "task.toml").read_text().replace("hit@1", "hit@2"))
    runs.append(evaluate("random:8", mixed, out=out))
    runs += [evaluate(model(f"\n    fingerprint = '{text}'\n"), mixed, out=out) for text in ("a", "b")]
    assert len({run.folder for run in runs}) == len({run.identity for run in runs}) == len(runs)
    for run in runs:
        kept = json.loads((Path(run.folder) / "run.json").read_text())
        assert kept["tasks"]["mine"]["value"] == run.tasks["mine"].value


BAD_MODELS = {
    "NaN": ("vectors[-1, 2] = np.nan", ["c text", "NaN"]),
    "infinite": ("vectors[-1, 2] = np.inf", ["c text", "infinite"]),
    "zero": ("vectors[-1] = 0", ["c text", "zero"]),
    "too large for float32": ("vectors = vectors.astype('f8'); vectors[-1] = 1e300", ["c text", "infinite"]),
    "too small for float32": ("vectors = vectors.astype('f8'); vectors[-1] = 1e-300", ["c text", "zero"]),
    "one row too few": ("vectors = vectors[1:]", ["(", "8)", "items beginning with"]),
    "another length": ("vectors = vectors[:, 1:]", ["7)", "8)"]),
    "one axis": ("vectors = vectors[0]", ["(8,)"]),
    "integers": ("vectors = vectors.astype(int)", ["int64"]),
    "words": ("vectors = vectors.astype(str)", ["<U"]),
}


@pytest.mark.parametrize("what", BAD_MODELS)
def test_what_a_model_must_not_return(
    what: str,
    mixed: Path,
    tmp_path: Path,
    model: Callable,
    command: Callable,
    refused: Callable,
    no_leftovers: Callable,
) -> None:
    line, says = BAD_MODELS[what]
    name = model(
        f"""
    def encode(self, items, *, role):
        vectors = np.stack([self.one(item) for item in items])
        if items[-1].id == "c text":
            {line}
        return vectors
"""
    )
    refused(command("run", mixed, "--model", name, "--out", tmp_path / "runs"), "letters", *says)
    no_leftovers(tmp_path / "runs")
    assert evaluate(model(), mixed, out=tmp_path / "runs").tasks["mine"].status == "ok"


def test_a_damaged_segment_is_dropped_said_and_embedded_anew(
    mixed: Path, tmp_path: Path, command: Callable, model: Callable
) -> None:
    arguments = ("run", mixed, "--model", model(), "--out", tmp_path / "runs", "--json", "--batch", 1)
    first = command(*arguments, "--limit", 1).json  # whose segment holds the candidates and a query
    whole = command(*arguments).json
    rows = sorted((tmp_path / "runs" / ".store").rglob("*.rows"))
    assert len(rows) == 2
    kept = {path: path.read_bytes() for path in rows[0].parent.iterdir()}
    for damage in (kept[rows[0]][:100], bytes(len(kept[rows[0]])), b"ARROW1\0\0" + bytes(200)):
        for path in rows[0].parent.iterdir():
            path.unlink()
        for path, content in kept.items():
            path.write_bytes(content)
        rows[0].write_bytes(damage)
        rows[0].with_suffix(".index").unlink()
        model()
        result = command(*arguments)
        assert (result.code, result.err) == (0, "")
        run = result.json
        assert run["embedded"]["now"] == first["embedded"]["now"] < run["embedded"]["planned"]
        assert rows[0].name in " ".join(run["notes"])
        assert rows[0].name in command("report", run["folder"]).out
        assert run["tasks"] == whole["tasks"]
        assert rows[0].read_bytes() == damage
        model(NO_ENCODE)
        again = command(*arguments).json
        assert again["embedded"]["now"] == 0
        assert again["tasks"] == whole["tasks"]
    for path in rows[0].parent.glob(f"{rows[0].stem}.*"):
        path.unlink()
    again = command(*arguments).json
    assert (again["notes"], again["embedded"]["now"]) == ([], 0)


def test_a_torn_segment_keeps_what_is_whole(mixed: Path, tmp_path: Path, model: Callable) -> None:
    """Nothing is said, since that is what a kill leaves; what is lost is embedded anew, and nothing else."""
    first = evaluate(model(), mixed, out=tmp_path / "runs", batch=1)
    (path,) = (tmp_path / "runs" / ".store").rglob("*.rows")
    path.with_suffix(".index").unlink()
    with path.with_suffix(".vectors").open("r+b") as file:
        file.truncate(4 * 8 * 5 - 1)
    second = evaluate(model(), mixed, out=tmp_path / "runs", batch=1)
    assert (second.embedded["now"], second.notes) == (5, ())
    assert second.tasks == first.tasks
    assert evaluate(model(NO_ENCODE), mixed, out=tmp_path / "runs", batch=1).tasks == first.tasks


SLOW = """
    def encode(self, items, *, role):
        import os, time

        with open(os.environ["CALLS"], "a") as file:
            file.write(f"{len(items)}\\n")
        if os.path.getsize(os.environ["CALLS"]) > 6:
            time.sleep(600)
        return np.stack([self.one(item) for item in items])
"""


def test_a_run_killed_in_the_middle_goes_on(
    mixed: Path, tmp_path: Path, model: Callable, run_of: Callable, no_leftovers: Callable
) -> None:
    calls = tmp_path / "calls"
    arguments = [sys.executable, "-m", "omnirecall", "run", str(mixed), "--model", model(SLOW), "--batch", "1"]
    process = subprocess.Popen(
        [*arguments, "--out", str(tmp_path / "runs")],
        env={**os.environ, "CALLS": str(calls)},
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 120
        while not (calls.exists() and calls.stat().st_size > 6):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not list((tmp_path / "runs").rglob("run.json"))
    (store,) = (tmp_path / "runs" / ".store").iterdir()
    (vectors,) = store.glob("*.vectors")
    assert vectors.stat().st_size == 3 * 8 * 4  # what was done is kept; the fourth batch was under way
    assert not list(store.glob("*.index"))
    (store / f".{vectors.stem}.index.0.tmp").write_bytes(b"what a kill in the middle of a write leaves")
    with vectors.open("ab") as file:
        file.write(b"vectors that nothing names")
    run = evaluate(model(), mixed, out=tmp_path / "runs", batch=1)
    no_leftovers(tmp_path / "runs", run=True)
    assert (run.embedded["now"], run.embedded["planned"]) == (6, 9)
    assert run.notes == ()
    undisturbed = evaluate(model(), mixed, out=tmp_path / "other", batch=1)
    assert run.tasks == undisturbed.tasks == evaluate(model(), mixed, out=tmp_path / "runs", batch=1).tasks
    assert rows_of(run.folder) == rows_of(undisturbed.folder)


def test_one_fingerprint_for_two_dimensions_is_kept_apart(mixed: Path, tmp_path: Path, model: Callable) -> None:
    wide = evaluate(model(), mixed, out=tmp_path / "runs")
    narrow = "\n    dimension = 7\n"
    evaluate(model(narrow), mixed, out=tmp_path / "runs")
    again = evaluate(model(NO_ENCODE), mixed, out=tmp_path / "runs")
    assert (again.embedded["now"], again.notes) == (0, ())
    assert again.tasks == wide.tasks


@pytest.mark.parametrize("fingerprint", ["../../elsewhere", "/etc/omnirecall", "", "a" * 300])
def test_a_fingerprint_is_no_path(fingerprint: str, mixed: Path, tmp_path: Path, model: Callable) -> None:
    before = set(tmp_path.iterdir())
    evaluate(model(f"\n    fingerprint = {fingerprint!r}\n"), mixed, out=tmp_path / "runs")
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "runs", tmp_path / "model.py"}
    assert {path.parent.parent.name for path in (tmp_path / "runs").rglob("*.rows")} == {".store"}


def test_unjudged_queries_are_counted(tmp_path: Path, own_data: Callable) -> None:
    folder = own_data(
        tmp_path / "data", toml='name = "mine"\nunjudged = "drop"\n', qrels=[("q1", "c1", 1), ("gone", "c1", 1)]
    )
    run = evaluate("random:8", folder, out=tmp_path / "runs")
    assert (run.tasks["mine"].queries, run.tasks["mine"].unjudged_queries) == (1, 1)
    assert "1 queries without a relevant candidate were dropped" in run.table()


def test_roles_of_a_task(tmp_path: Path, own_data: Callable, model: Callable) -> None:
    toml = """name = "mine"
[roles.query]
file = "asked.jsonl"
instruction = "ask"
[roles.candidate]
instruction = "answer"
"""
    folder = own_data(tmp_path / "data", toml=toml)
    (folder / "queries.jsonl").rename(folder / "asked.jsonl")
    run = evaluate(model(), folder, out=tmp_path / "runs")
    by_hand = of_file(model())
    vectors = [
        by_hand.one(DecodedItem("x", text=text, instruction=says)) for text, says in (("one", "ask"), ("uno", "answer"))
    ]
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert rows_of(run.folder)[0]["positive_scores"] == pytest.approx([float(cosine)], abs=1e-6)


def read_rows(names: str | list[str]) -> list[str]:
    names = [names] if isinstance(names, str) else names
    return [json.loads(line)["id"] for name in names for line in (STARTER / name).read_text().splitlines()]


def starter_chance(data: dict[str, Any]) -> float:
    """The mean over the queries of relevant over pool, from the files alone."""
    candidates, relevant, shares = set(read_rows(data["candidates"])), {}, []
    for line in (STARTER / data["qrels"]).read_text().splitlines()[1:]:
        query, candidate, grade = line.split("\t")
        if float(grade) > 0:
            relevant.setdefault(query, set()).add(candidate)
    out: dict[str, set[str]] = {}
    if "pools" in data:
        for line in (STARTER / data["pools"]).read_text().splitlines():
            row = json.loads(line)
            assert set(row) == {"query-id", "exclude"}
            out[row["query-id"]] = set(row["exclude"])
    for query in read_rows(data["queries"]):
        pool = candidates - out.get(query, set())
        shares.append(len(relevant[query] & pool) / len(pool))
    return statistics.fmean(shares)


@pytest.fixture(scope="module")
def constant_starter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return evaluate("constant:4", "starter", out=tmp_path_factory.mktemp("starter"))


def test_a_constant_model_scores_chance_on_every_starter_task(constant_starter: Any) -> None:
    suite = omnirecall.load_suite("starter")
    assert list(constant_starter.tasks) == suite.task_names()
    assert len(suite.tasks) >= 12
    for task in suite.tasks:
        record = constant_starter.tasks[task.name]
        assert record.status == "ok"
        assert record.measure == "hit@1"
        assert record.value == pytest.approx(starter_chance(dict(task.data)), abs=1e-12), task.name
        assert record.chance == pytest.approx(record.value, abs=1e-12)
        assert 0 < record.value < 0.05
        assert (record.worst, record.best) == (0, 1)
        assert record.tied_queries == record.queries


def test_starter_sizes_are_those_of_its_card(constant_starter: Any) -> None:
    for task in omnirecall.load_suite("starter").tasks:
        record = constant_starter.tasks[task.name]
        assert record.queries == len(read_rows(task.data["queries"]))
        assert record.pool == len(read_rows(task.data["candidates"]))
        assert task.query_count in (None, record.queries), task.name
        assert task.candidate_count in (None, record.pool), task.name


@pytest.mark.parametrize("name", ["constant:3", "random:6"])
def test_the_order_of_rows_and_the_names_of_ids_do_not_matter(name: str, tmp_path: Path, own_data: Callable) -> None:
    rng = random.Random(0)
    queries = [{"id": f"q{n}", "text": f"query {n % 6}"} for n in range(12)]
    candidates = [{"id": f"c{n}", "text": f"text {n % 7}"} for n in range(20)]  # several are the same
    qrels = [(f"q{n}", f"c{m}", 1 + m % 2) for n in range(12) for m in rng.sample(range(20), 3)]
    values = []
    for round_ in range(3):
        names = {f"c{n}": f"c{n}" if round_ < 2 else f"{97 * n % 101:03d}" for n in range(20)}
        rows = [{**row, "id": names[row["id"]]} for row in candidates]
        folder = own_data(
            tmp_path / f"data{round_}",
            rng.sample(queries, 12) if round_ else queries,
            rng.sample(rows, 20) if round_ else rows,
            rng.sample([(q, names[c], g) for q, c, g in qrels], len(qrels)),
            'name = "mine"\nmeasure = "hit@1"\nmeasures = ["recall@3", "ndcg@5", "map", "mrr", "median_rank"]\n',
        )
        run = evaluate(name, folder, out=tmp_path / "runs")
        values.append({key: (m.value, m.best, m.worst) for key, m in run.tasks["mine"].measures.items()})
    for other in values[1:]:
        for key, triple in values[0].items():
            assert other[key] == pytest.approx(triple, abs=1e-12), key


def test_in_python(mixed: Path, tmp_path: Path) -> None:
    """The names of the package stay what they are, however often they are used."""
    run = omnirecall.evaluate(load_model("random:8"), omnirecall.load_suite(mixed), out=tmp_path / "runs")
    assert "mine" in run.table()
    assert "mine" in run.table("latex")
    with pytest.raises(UserError, match="--limit 0"):
        omnirecall.evaluate("random:8", mixed, out=tmp_path / "runs", limit=0)
