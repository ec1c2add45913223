"""A user's mistake ends with code 2 and one sentence that names the place, and leaves nothing half-written."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

GOOD = np.random.default_rng(0).standard_normal((3, 4)).astype("f4")


def vectors(folder: Path, **files: object) -> list[Path]:
    """Sound input for ``score`` but for the files given, as arrays, text or bytes."""
    content: dict[str, object] = {"q.npy": GOOD[:2], "c.npy": GOOD, "qrels": "0 0 0 1\n1 0 2 1\n"}
    content |= {name.replace("_", ".", 1): value for name, value in files.items()}
    for name, value in content.items():
        if isinstance(value, np.ndarray):
            np.save(folder / name, value)
        elif value is not None:
            (folder / name).write_bytes(value if isinstance(value, bytes) else str(value).encode())
    return [folder / "q.npy", folder / "c.npy", folder / "qrels"]


def changed(row: int, value: float) -> np.ndarray:
    out = GOOD.copy()
    out[row] = value
    return out


def saved(value: object) -> bytes:
    out = io.BytesIO()
    np.save(out, value, allow_pickle=True)
    return out.getvalue()


def archive() -> bytes:
    out = io.BytesIO()
    np.savez(out, GOOD)
    return out.getvalue()


def one_nan() -> np.ndarray:
    out = GOOD.copy()
    out[1, 2] = np.nan
    return out


BAD_VECTORS = {
    "NaN": (one_nan(), ["row 1", "id 1", "NaN"]),
    "infinite": (changed(2, np.inf), ["row 2", "id 2", "infinite"]),
    "zero": (changed(0, 0.0), ["row 0", "id 0", "zero"]),
    "minus zero": (changed(0, -0.0), ["row 0", "id 0", "zero"]),
    "dimension": (np.ones((3, 5), "f4"), ["q.npy has 4 dimensions", "has 5"]),
    "one row": (np.ones(4, "f4"), ["(4,)"]),
    "three axes": (np.ones((3, 2, 2), "f4"), ["(3, 2, 2)"]),
    "no rows": (np.ones((0, 4), "f4"), ["(0, 4)"]),
    "no columns": (np.ones((3, 0), "f4"), ["(3, 0)"]),
    "integers": (np.ones((3, 4), "i8"), ["int64"]),
    "long floats": (np.ones((3, 4), np.longdouble), [str(np.dtype(np.longdouble))]),
    "complex": (np.ones((3, 4), "c8"), ["complex64"]),
    "words": (np.full((3, 4), "a"), ["<U1"]),
    "objects": (saved(np.array([[1, None]], object)), ["not a whole .npy"]),
    "pickle": (pickle.dumps(GOOD), ["not a whole .npy"]),
    "archive": (archive(), ["archive"]),
    "broken archive": (b"PK\x03\x04" + bytes(100), ["not a whole .npy"]),
    "cut short": (saved(GOOD)[:-5], ["not a whole .npy"]),
    "header only": (saved(GOOD)[:9], ["not a whole .npy"]),
    "text": ("1 2 3 4\n", ["not a whole .npy"]),
    "empty": ("", ["not a whole .npy"]),
    "missing": (None, ["no such file"]),
}


@pytest.mark.parametrize("name", BAD_VECTORS)
def test_bad_vectors(name: str, tmp_path: Path, command: Callable, refused: Callable) -> None:
    content, says = BAD_VECTORS[name]
    result = command("score", *vectors(tmp_path, c_npy=content), "--per-query", tmp_path / "each.parquet")
    refused(result, "c.npy", *says)
    assert not (tmp_path / "each.parquet").exists()
    assert not list(tmp_path.glob("*.tmp"))


def test_ids_of_bad_vectors(tmp_path: Path, command: Callable, refused: Callable) -> None:
    arguments = vectors(tmp_path, q_npy=changed(1, 0.0), qids="first\nsecond one\nthird\n")
    refused(command("score", *arguments, "--query-ids", tmp_path / "qids"), "q.npy", "row 1", "id second one")


def test_a_zero_vector_has_a_dot_product(tmp_path: Path, command: Callable) -> None:
    assert command("score", *vectors(tmp_path, c_npy=changed(1, 0.0)), "--similarity", "dot").code == 0


BAD_FILES = {
    "unknown query": ({"qrels": "0 0 0 1\n1 0 2 1\nq7 0 1 1\n"}, ["qrels", "q7"]),
    "query without judgment": ({"qrels": "0 0 0 1\n"}, ["qrels", "query 1 has no relevant"]),
    "query with zeros only": ({"qrels": "0 0 0 1\n1 0 2 0\n"}, ["qrels", "query 1 has no relevant"]),
    "nothing relevant": ({"qrels": "0 0 0 0\n1 0 2 0\n"}, ["qrels", "query 0"]),
    "three columns": ({"qrels": "0 0 1\n"}, ["qrels", "line 1", "3 columns"]),
    "ragged": ({"qrels": "0 0 0 1\n1 0 2\n"}, ["qrels", "line 2", "3 columns"]),
    "grade": ({"qrels": "0 0 0 1\n\n1 0 2 high\n"}, ["qrels", "line 3", "high"]),
    "grade NaN": ({"qrels": "0 0 0 nan\n1 0 2 1\n"}, ["qrels", "line 1", "nan"]),
    "grade infinite": ({"qrels": "0 0 0 inf\n1 0 2 1\n"}, ["qrels", "line 1", "inf"]),
    "judged twice": ({"qrels": "0 0 0 1\n1 0 2 1\n0 0 0 2\n"}, ["qrels", "line 3", "twice"]),
    "header only": ({"qrels": "query-id\tcorpus-id\tscore\n"}, ["qrels", "no judgment"]),
    "other bytes": ({"qrels": b"0 0 0 1\n1 0 \xff\xfe 1\n"}, ["qrels", "UTF-8"]),
    "empty": ({"qrels": "\n \n"}, ["qrels", "empty"]),
    "missing": ({"qrels": None}, ["qrels", "no such file"]),
    "too few ids": ({"qids": "a\n"}, ["qids", "1 ids", "2 rows"]),
    "duplicate id": ({"qids": "0\n0\n"}, ["qids", "id 0"]),
    "duplicate candidate": ({"cids": "0\n2\n2\n"}, ["cids", "id 2"]),
    "pool of an unknown query": ({"pool": '{"query-id": "x", "candidates": ["0"]}\n'}, ["pool", "query x"]),
    "pool with an unknown id": (
        {"pool": '{"query-id": "0", "candidates": ["0", "x"]}\n'},
        ["pool", "query 0", "names x"],
    ),
    "pool with an id twice": ({"pool": '{"query-id": "0", "candidates": ["0", "0"]}\n'}, ["pool", "query 0", "id 0"]),
    "pool for one query only": ({"pool": '{"query-id": "0", "candidates": ["0"]}\n'}, ["pool", "query 1 has no pool"]),
    "empty pool": ({"pool": '{"query-id": "0", "candidates": []}\n'}, ["pool", "query 0", "empty"]),
    "two pools": ({"pool": '{"query-id": "0", "candidates": ["0"]}\n' * 2}, ["pool", "line 2", "query 0"]),
    "broken pool": ({"pool": '\n{"query-id": "0", "candidates": ["0"\n'}, ["pool", "line 2"]),
    "pool of numbers": ({"pool": '{"query-id": "0", "candidates": [0]}\n'}, ["pool", "line 1"]),
    "pool of nothing": ({"pool": '{"query-id": "0"}\n'}, ["pool", "line 1", "neither"]),
    "pool with another key": ({"pool": '{"query-id": "0", "exlude": ["1"]}\n'}, ["pool", "line 1", "exlude"]),
    "excluded and relevant": ({"pool": '{"query-id": "0", "exclude": ["0"]}\n'}, ["pool", "query 0", "candidate 0"]),
    "unknown exclusion": ({"pool": '{"query-id": "0", "exclude": ["x"]}\n'}, ["pool", "query 0", "names x"]),
    "nothing left": (
        {
            "pool": '{"query-id": "0", "exclude": ["0", "1", "2"]}\n',
            "qrels": "0 0 elsewhere 1\n1 0 2 1\n",
        },
        ["pool", "query 0", "nothing"],
    ),
    "line break in an id": ({"pool": '{"query-id": "a\\nb", "exclude": ["1"]}\n'}, ["pool", "a\\nb"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name: str, tmp_path: Path, command: Callable, refused: Callable) -> None:
    files, says = BAD_FILES[name]
    arguments: list[object] = [*vectors(tmp_path, **files)]
    for file, option in (("pool", "--pool"), ("qids", "--query-ids"), ("cids", "--candidate-ids")):
        arguments += [option, tmp_path / file] if file in files else []
    refused(command("score", *arguments, "--per-query", tmp_path / "each.parquet"), tmp_path / says[0], *says)
    assert not (tmp_path / "each.parquet").exists()


BAD_RUNS = {
    "columns": ("0 Q0 a 1 2.5\n", ["line 1", "5 columns"]),
    "score": ("0 Q0 a 1 2.5 t\n0 Q0 b 1 x t\n", ["line 2", "'x'"]),
    "NaN": ("0 Q0 a 1 nan t\n", ["line 1", "nan"]),
    "twice": ("0 Q0 a 1 2 t\n0 Q0 a 2 1 t\n", ["line 2", "candidate a"]),
    "empty": ("", ["empty"]),
    "other bytes": (b"\xff\xfe0", ["UTF-8"]),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_bad_run_files(name: str, tmp_path: Path, command: Callable, refused: Callable) -> None:
    text, says = BAD_RUNS[name]
    (tmp_path / "run.trec").write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "qrels").write_text("0 0 a 1\n")
    refused(command("score", tmp_path / "qrels", "--run-file", tmp_path / "run.trec"), "run.trec", *says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--measures", "hit@1,accuracy"], ["accuracy", "recall@k"]),
        (["--measures", "hit"], ["hit"]),
        (["--measures", "hit@0"], ["hit@0"]),
        (["--measures", ""], ["measure"]),
        (["--similarity", "l2"], ["l2", "cosine"]),
        (["--tie-break", "random"], ["random"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["one-file-too-many"], ["QRELS"]),
        (["--run-file", "run.trec"], ["QRELS"]),
    ],
)
def test_bad_options_of_score(
    arguments: list[str], says: list[str], tmp_path: Path, command: Callable, refused: Callable
) -> None:
    refused(command("score", *vectors(tmp_path), *arguments), *says)


def png() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(3200))
    return out.getvalue()


MEDIA = {
    "image": [("missing", None), ("empty", b""), ("cut short", png()[:400]), ("no picture", b"only words" * 9)],
    "audio": [("missing", None), ("empty", b""), ("no sound", b"only words" * 9), ("a picture", png())],
    "video": [("missing", None), ("empty", b""), ("no video", b"only words" * 9), ("sound", wav())],
}


@pytest.mark.parametrize(
    ("part", "what", "content"), [(part, *case) for part, cases in MEDIA.items() for case in cases]
)
def test_bad_media(
    part: str,
    what: str,
    content: bytes | None,
    tmp_path: Path,
    own_data: Callable,
    command: Callable,
    refused: Callable,
    no_leftovers: Callable,
) -> None:
    rows = [{"id": "c1", "text": "uno"}, {"id": "c 2", part: "media/bad.bin"}]
    folder = own_data(tmp_path / "data", candidates=rows, qrels=[("q1", "c1", 1), ("q2", "c 2", 1)])
    (folder / "media").mkdir()
    if content is not None:
        (folder / "media" / "bad.bin").write_bytes(content)
    out = tmp_path / "runs"
    result = command("run", folder, "--model", "random:8", "--out", out)
    refused(result, "item c 2", "media/bad.bin")
    if not content:  # seen before any work
        refused(result, "candidates.jsonl: line 2", "no file" if content is None else "is empty")
    no_leftovers(tmp_path / "runs")


def replaced(**files: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name, content in files.items():
            path = folder / name.replace("_", ".")
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else str(content).encode())

    return change


def row(**fields: object) -> str:
    return json.dumps(fields) + "\n"


QUERY = row(id="q1", text="one") + row(id="q2", text="two")
CARD = '[suite]\nname = "s"\n[[task]]\nname = "t"\nmeasure = "hit@1"\n'

BAD_FOLDERS = {
    "broken jsonl": (replaced(queries_jsonl=QUERY + "\n{broken\n"), ["queries.jsonl", "line 4"]),
    "not an object": (replaced(queries_jsonl="[1]\n"), ["queries.jsonl", "line 1"]),
    "number for an id": (replaced(queries_jsonl=row(id=5, text="x")), ["queries.jsonl", "line 1"]),
    "no id": (replaced(queries_jsonl=QUERY + row(text="x")), ["queries.jsonl", "line 3", "id"]),
    "unknown key": (replaced(queries_jsonl=row(id="q1", txt="x")), ["queries.jsonl", "line 1", "txt"]),
    "nothing to embed": (replaced(queries_jsonl=row(id="q1")), ["queries.jsonl", "line 1", "item q1"]),
    "empty text": (replaced(queries_jsonl=row(id="q1", text="")), ["queries.jsonl", "line 1", "item q1"]),
    "duplicate id": (
        replaced(queries_jsonl=QUERY + row(id="q1", text="x")),
        ["queries.jsonl", "line 3", "id q1", "line 1"],
    ),
    "duplicate candidate": (
        replaced(candidates_jsonl=row(id="c1", text="x") * 2),
        ["candidates.jsonl", "line 2", "id c1"],
    ),
    "lone surrogate": (replaced(queries_jsonl='{"id": "q1", "text": "\\ud800"}\n'), ["queries.jsonl", "line 1"]),
    "other bytes": (
        replaced(queries_jsonl=QUERY.encode() + b'{"id": "q3", "text": "\xe9"}\n'),
        ["queries.jsonl", "UTF-8"],
    ),
    "UTF-16": (replaced(queries_jsonl=QUERY.encode("utf-16")), ["queries.jsonl", "UTF-8"]),
    "empty queries": (replaced(queries_jsonl=""), ["queries.jsonl", "empty"]),
    "missing queries": (replaced(queries_jsonl=None), ["queries.jsonl", "no such file"]),
    "missing candidates": (replaced(candidates_jsonl=None), ["candidates.jsonl", "no such file"]),
    "missing judgments": (replaced(qrels_tsv=None), ["qrels.tsv", "no such file"]),
    "unknown query": (replaced(qrels_tsv="q1 0 c1 1\nq2 0 c1 1\nq9 0 c1 1\n"), ["qrels.tsv", "q9"]),
    "unjudged query": (replaced(qrels_tsv="q1 0 c1 1\n"), ["qrels.tsv", "q2"]),
    "outside": (replaced(queries_jsonl=row(id="q1", image="../secret.png")), ["line 1", "item q1", "../secret.png"]),
    "absolute": (replaced(queries_jsonl=row(id="q1", image="/etc/hostname")), ["line 1", "item q1", "/etc/hostname"]),
    "NUL": (replaced(queries_jsonl=row(id="q1", image="a\0b")), ["line 1", "item q1"]),
    "long name": (replaced(queries_jsonl=row(id="q1", image="a" * 5000)), ["line 1", "item q1"]),
    "a folder": (replaced(queries_jsonl=row(id="q1", image=".")), ["line 1", "item q1"]),
    "no folder to go through": (replaced(queries_jsonl=row(id="q1", image="task.toml/x")), ["line 1", "item q1"]),
    "TOML": (replaced(task_toml='name = "mine"\nmeasure = hit\n'), ["task.toml", "line 2"]),
    "TOML of other bytes": (replaced(task_toml=b'name = "\xff"\n'), ["task.toml"]),
    "unknown measure": (replaced(task_toml='measure = "accuracy@1"\n'), ["task.toml", "accuracy@1", "hit@k"]),
    "unknown card key": (replaced(task_toml='mesure = "hit@1"\n'), ["task.toml", "mesure", "measure"]),
    "unknown role": (replaced(task_toml='[roles.answer]\nfile = "a"\n'), ["task.toml", "answer"]),
    "unknown role key": (replaced(task_toml='[roles.query]\nfil = "a"\n'), ["task.toml", "fil"]),
    "data is no table": (replaced(task_toml="data = 3\n"), ["task.toml", "data"]),
    "data is a number": (replaced(task_toml="[data]\nqueries = 3\n"), ["data.queries", "3"]),
    "data is a list of numbers": (replaced(task_toml="[data]\nqueries = [3]\n"), ["data.queries"]),
    "data is empty": (replaced(task_toml="[data]\nqueries = []\n"), ["data.queries"]),
    "two files of judgments": (replaced(task_toml='[data]\nqrels = ["a", "b"]\n'), ["data.qrels"]),
    "unknown data key": (replaced(task_toml='[data]\nquerys = "queries.jsonl"\n'), ["querys", "queries"]),
    "unknown layout": (replaced(task_toml='[data]\nlayout = "parquet-of-mine"\n'), ["parquet-of-mine"]),
    "layout is a list": (replaced(task_toml="[data]\nlayout = []\n"), ["layout"]),
    "file outside": (replaced(task_toml='[data]\nqueries = "../queries.jsonl"\n'), ["../queries.jsonl"]),
    "similarity": (replaced(task_toml='similarity = "l2"\n'), ["task.toml", "l2"]),
    "frame rule": (replaced(task_toml='media = {rule = "random"}\n'), ["task.toml", "random"]),
    "mean of an unknown task": (
        replaced(suite_toml=CARD + '[[mean]]\nname = "m"\nof = ["tt"]\n'),
        ["suite.toml", "mean m", "tt", "did you mean t?"],
    ),
    "mean of itself": (
        replaced(
            suite_toml=CARD + '[[mean]]\nname = "m"\nof = ["n"]\n[[mean]]\nname = "n"\nof = ["t", "m"]\n',
        ),
        ["suite.toml", "m > n > m"],
    ),
    "two tasks of a name": (
        replaced(suite_toml=CARD + '[[task]]\nname = "t"\nmeasure = "mrr"\n'),
        ["suite.toml", "name t"],
    ),
    "no task": (replaced(suite_toml='[suite]\nname = "s"\n'), ["suite.toml", "[[task]]"]),
    "a path for a name": (replaced(suite_toml=CARD.replace('"t"', '"a/b"')), ["suite.toml", "a/b"]),
    "two dots for a name": (replaced(suite_toml=CARD.replace('"t"', '".."')), ["suite.toml", ".."]),
    "suite card key": (
        replaced(suite_toml=CARD.replace("[suite]", '[suite]\ntitel = "x"')),
        ["suite.toml", "titel", "title"],
    ),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_bad_folders(
    name: str, tmp_path: Path, own_data: Callable, command: Callable, refused: Callable, no_leftovers: Callable
) -> None:
    change, says = BAD_FOLDERS[name]
    folder = own_data(tmp_path / "data")
    change(folder)
    out = tmp_path / "runs"
    refused(command("run", folder, "--model", "random:8", "--out", out), *says)
    no_leftovers(tmp_path / "runs")


@pytest.mark.parametrize("at", ["image", "queries"])
@pytest.mark.parametrize("loop", [False, True])
def test_links_that_lead_out_or_in_circles(
    at: str, loop: bool, tmp_path: Path, own_data: Callable, command: Callable, refused: Callable
) -> None:
    toml = '[data]\nqueries = "link"\n' if at == "queries" else ""
    rows = [{"id": "q1", "image": "link"}, {"id": "q2", "text": "two"}]
    folder = own_data(tmp_path / "data", queries=rows, toml=toml)
    (tmp_path / "secret").write_bytes(png())
    (folder / "link").symlink_to(folder / "link" if loop else tmp_path / "secret")
    refused(command("run", folder, "--model", "random:8", "--out", tmp_path / "runs"), "link")


def test_a_link_inside_the_folder_is_followed(tmp_path: Path, own_data: Callable, command: Callable) -> None:
    folder = own_data(tmp_path / "data", queries=[{"id": "q1", "image": "link"}, {"id": "q2", "text": "two"}])
    (folder / "a.png").write_bytes(png())
    (folder / "link").symlink_to("a.png")
    assert command("run", folder, "--model", "random:8", "--out", tmp_path / "runs").code == 0


BAD_POOLS = {
    "excluded and relevant": ([{"query-id": "q1", "exclude": ["c1"]}], ["pools.jsonl", "query q1", "candidate c1"]),
    "unknown query": ([{"query-id": "q9", "exclude": ["c1"]}], ["pools.jsonl", "q9"]),
    "unknown candidate": ([{"query-id": "q1", "exclude": ["c9"]}], ["pools.jsonl", "q1", "c9"]),
    "bare query": ([{"query-id": "q1", "candidates": ["c1"]}], ["pools.jsonl", "q2"]),
}


@pytest.mark.parametrize("name", BAD_POOLS)
def test_bad_pools(name: str, tmp_path: Path, own_data: Callable, command: Callable, refused: Callable) -> None:
    pools, says = BAD_POOLS[name]
    folder = own_data(tmp_path / "data", pools=pools)
    refused(command("run", folder, "--model", "random:8", "--out", tmp_path / "runs"), *says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--limit", "0"], ["--limit 0"]),
        (["--limit", "-3"], ["--limit -3"]),
        (["--limit", "many"], ["--limit", "many"]),
        (["--dim", "0"], ["--dim 0"]),
        (["--dim", "9"], ["--dim 9", "8 dimensions"]),
        (["--top-k", "0"], ["--top-k 0"]),
        (["--batch", "0"], ["--batch 0"]),
        (["--tasks", "nothing*"], ["nothing*", "mine"]),
        (["--prompt", "shout"], ["shout"]),
        (["--model", "gpt:9"], ["gpt:9", "starter", "py"]),
        (["--model", "random:many"], ["random:many"]),
        (["--model", "py:no_such_module:M"], ["no_such_module"]),
        (["--model", "py:no_such_file.py:M"], ["no_such_file.py"]),
        (["--model", "py:alone"], ["py:alone"]),
        (["--data", "no-such-folder"], ["no-such-folder"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_bad_options_of_run(
    arguments: list[str],
    says: list[str],
    tmp_path: Path,
    own_data: Callable,
    command: Callable,
    refused: Callable,
) -> None:
    folder = own_data(tmp_path / "data")
    model = [] if "--model" in arguments else ["--model", "random:8"]
    refused(command("run", folder, *model, "--out", tmp_path / "runs", *arguments), *says)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "startr", "--model", "random:8"], ["startr", "did you mean starter?"]),
        (["run", "./no-such-folder", "--model", "random:8"], ["no-such-folder"]),
        (["run", "starter"], ["--model"]),
        (["suites", "startr"], ["startr"]),
        (["models", "gpt"], ["gpt"]),
        (["report", "no-such-run"], ["no-such-run"]),
        (["report", ".", "--format", "html"], ["html"]),
        (["rum"], ["rum"]),
    ],
)
def test_bad_names(
    arguments: list[str],
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable,
    refused: Callable,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(command(*arguments), *says)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_task(tmp_path: Path, command: Callable, refused: Callable) -> None:
    (tmp_path / "data").mkdir()
    refused(command("run", tmp_path / "data", "--model", "random:8"), tmp_path / "data", "task.toml")


def test_a_folder_named_like_a_suite_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable, own_data: Callable
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "starter").mkdir()
    assert "text-to-image" in command("suites", "starter").out
    own_data(tmp_path / "starter")
    assert "mine" in command("suites", "starter").out


BAD_RECORDS = {
    "random": b"\x00\x01\xff",
    "other JSON": b'{"a": 1}',
    "list": b"[]",
    "empty": b"",
    "UTF-16": "{}".encode("utf-16"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_run_records(name: str, tmp_path: Path, command: Callable, refused: Callable) -> None:
    (tmp_path / "run.json").write_bytes(BAD_RECORDS[name])
    refused(command("report", tmp_path), "run.json")


def test_what_is_no_mistake(tmp_path: Path, own_data: Callable, command: Callable) -> None:
    """A byte order mark, Windows line ends, blank lines and no last line end."""
    plain = own_data(tmp_path / "plain", toml='name = "mine"\nmeasure = "mrr"\n')
    marked = own_data(tmp_path / "marked", toml='name = "mine"\nmeasure = "mrr"\n')
    for name in ("queries.jsonl", "candidates.jsonl", "qrels.tsv"):
        text = (marked / name).read_text().rstrip("\n").replace("\n", "\r\n\r\n  \r\n")
        (marked / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    runs = [
        command("run", folder, "--model", "random:8", "--out", tmp_path / "runs", "--json")
        for folder in (plain, marked)
    ]
    assert [run.code for run in runs] == [0, 0]
    assert runs[0].json["tasks"] == runs[1].json["tasks"]


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omnirecall", "score", *vectors(tmp_path, c_npy=one_nan())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "c.npy: row 1, id 1: the vector is NaN" in done.stderr


def test_debug_shows_where(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omnirecall", "--debug", "score", *vectors(tmp_path, c_npy=one_nan())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def done_or_refused(result: object) -> None:
    code, err = result.code, result.err  # type: ignore[attr-defined]
    assert code in (0, 2), result
    assert "Traceback" not in err
    assert err.count("\n") == (1 if code else 0), err


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mutated(whole: bytes) -> st.SearchStrategy[bytes]:
    """Random bytes, and a sound file with a piece replaced."""

    def spliced(start: int, length: int, middle: bytes) -> bytes:
        start %= len(whole) + 1
        return whole[:start] + middle + whole[start + length :]

    return st.binary(max_size=60) | st.builds(
        spliced,
        st.integers(0, 10**4),
        st.integers(0, 40),
        st.binary(max_size=6)
        | st.sampled_from([b"\n", b"\t", b'"', b"{", b"\0", b"nan", b"\xef\xbb\xbf", b"\r", b"1e999"]),
    )


NPY = saved(GOOD)


@FUZZ
@given(content=mutated(NPY) | mutated(NPY[:128]))
def test_any_bytes_for_vectors(content: bytes, tmp_path: Path, command: Callable) -> None:
    done_or_refused(command("score", *vectors(tmp_path, c_npy=content)))


@FUZZ
@given(content=mutated(b"0 0 0 1\n1 0 2 1\n") | mutated(b"query-id\tcorpus-id\tscore\n0\t0\t1\n1\t2\t1\n"))
def test_any_bytes_for_judgments(content: bytes, tmp_path: Path, command: Callable) -> None:
    done_or_refused(command("score", *vectors(tmp_path, qrels=content)))


@FUZZ
@given(content=mutated(b'{"query-id": "0", "exclude": ["1"]}\n{"query-id": "1", "exclude": ["0"]}\n'))
def test_any_bytes_for_pools(content: bytes, tmp_path: Path, command: Callable) -> None:
    done_or_refused(command("score", *vectors(tmp_path, pool=content), "--pool", tmp_path / "pool"))


@FUZZ
@given(content=mutated(QUERY.encode() + row(id="q3", image="a.png", cluster="x", instruction="y").encode()))
def test_any_bytes_for_queries(content: bytes, tmp_path: Path, own_data: Callable, command: Callable) -> None:
    folder = own_data(tmp_path / "data", toml='unjudged = "drop"\n')
    (folder / "a.png").write_bytes(png())
    (folder / "queries.jsonl").write_bytes(content)
    done_or_refused(command("run", folder, "--model", "constant:2", "--out", tmp_path / "runs", "-q"))


@FUZZ
@given(content=mutated(b"0 Q0 a 1 2.5 t\n0 Q0 b 2 1.5 t\n"))
def test_any_bytes_for_a_run_file(content: bytes, tmp_path: Path, command: Callable) -> None:
    (tmp_path / "run.trec").write_bytes(content)
    (tmp_path / "qrels").write_text("0 0 a 1\n")
    done_or_refused(command("score", tmp_path / "qrels", "--run-file", tmp_path / "run.trec"))


@FUZZ
@given(
    content=mutated(b'name = "mine"\nmeasure = "hit@1"\n[media]\nframes = 8\n[roles.query]\nfile = "queries.jsonl"\n')
    | mutated(b'measures = ["mrr"]\n[data]\nqueries = ["queries.jsonl"]\nqrels = "qrels.tsv"\n')
)
def test_any_bytes_for_a_task(content: bytes, tmp_path: Path, own_data: Callable, command: Callable) -> None:
    folder = own_data(tmp_path / "data")
    (folder / "task.toml").write_bytes(content)
    done_or_refused(command("run", folder, "--model", "constant:2", "--out", tmp_path / "runs", "-q"))


@FUZZ
@given(part=st.sampled_from(["image", "video", "audio"]), data=st.data())
def test_any_bytes_for_media(
    part: str, data: st.DataObject, tmp_path: Path, own_data: Callable, command: Callable
) -> None:
    content = data.draw(mutated(wav() if part == "audio" else png()))
    folder = own_data(tmp_path / "data", candidates=[{"id": "c1", part: "a.bin"}, {"id": "c2", "text": "x"}])
    (folder / "a.bin").write_bytes(content)
    done_or_refused(command("run", folder, "--model", "constant:2", "--out", tmp_path / "runs", "-q"))
