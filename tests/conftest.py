"""What several tests share: the command line in this process, and own-data folders."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest


@dataclass(frozen=True)
class Result:
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


Command = Callable[..., Result]


def _command(*arguments: object) -> Result:
    """``omnirecall ARGUMENTS`` in this process; an exception that the command lets through comes through."""
    from omnirecall.cli import main

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        saved = os.dup(1), os.dup(2)
        try:
            os.dup2(out.fileno(), 1)  # libraries in C write to the descriptors
            os.dup2(err.fileno(), 2)
            argv = ["omnirecall", *(str(argument) for argument in arguments)]
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "argv", argv):
                try:
                    main()
                    code = 0
                except SystemExit as stop:
                    code = int(stop.code or 0)
        finally:
            for number, kept in zip((1, 2), saved, strict=True):
                os.dup2(kept, number)
                os.close(kept)
        out.seek(0)
        err.seek(0)
        return Result(code, out.read(), err.read())


@pytest.fixture(scope="session")
def command() -> Command:
    """Run a command: ``command("run", folder, "--model", "random:8")``."""
    return _command


def _refused(result: Result, *names: object) -> None:
    assert "Traceback" not in result.err, result.err
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("omnirecall: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1, result.err
    for name in names:
        assert str(name) in result.err, (name, result.err)


@pytest.fixture(scope="session")
def refused() -> Callable[..., None]:
    """Assert that a result is a refusal: code 2, one line on standard error, and the names in it."""
    return _refused


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def jsonl() -> Callable[[Path, Iterable[Mapping[str, Any]]], None]:
    """Write rows as jsonl."""
    return _lines


def _own_data(
    folder: Path,
    queries: Iterable[Mapping[str, Any]] = ({"id": "q1", "text": "one"}, {"id": "q2", "text": "two"}),
    candidates: Iterable[Mapping[str, Any]] = (
        {"id": "c1", "text": "uno"},
        {"id": "c2", "text": "due"},
        {"id": "c3", "text": "tre"},
    ),
    qrels: Iterable[tuple[object, ...]] = (("q1", "c1", 1), ("q2", "c2", 1)),
    toml: str = 'name = "mine"\nmeasure = "hit@1"\n',
    pools: Iterable[Mapping[str, Any]] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _lines(folder / "queries.jsonl", queries)
    _lines(folder / "candidates.jsonl", candidates)
    rows = ["\t".join(str(field) for field in row) for row in qrels]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    if pools is not None:
        _lines(folder / "pools.jsonl", pools)
        toml += '[data]\npools = "pools.jsonl"\n'
    (folder / "task.toml").write_text(toml)
    return folder


@pytest.fixture(scope="session")
def own_data() -> Callable[..., Path]:
    """Write an own-data folder of one task; what is not given is small and sound."""
    return _own_data


MODEL = '''
"""A deterministic model: the letters of a text, the mean colours of pictures, the loudness of sounds."""

import hashlib

import numpy as np


class Model:
    name = "letters"
    fingerprint = "letters-1"
    dimension = 8
    symmetric = True
    default_prompt = "model"

    def supports(self, modalities):
        return bool(modalities)

    def encode(self, items, *, role):
        return np.stack([self.one(item) for item in items])

    def one(self, item):
        vector = np.zeros(self.dimension)
        if item.text is not None:
            digest = hashlib.sha256((item.instruction + "|" + item.text).encode()).digest()
            vector += np.frombuffer(digest[: self.dimension], np.uint8) / 128.0 - 1
        if item.image is not None:
            vector[:3] += np.asarray(item.image).mean((0, 1)) / 255 + 0.1
        if item.video is not None:
            vector[3:6] += item.video.pixels.mean((0, 1, 2)) / 255 + 0.1
        if item.audio is not None:
            vector[6] += np.abs(item.audio.values).mean() + 0.1
        return vector.astype(np.float32)
'''


@pytest.fixture(scope="session")
def model_source() -> str:
    """Source of a deterministic model of one's own; the class is ``Model``."""
    return MODEL


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """Write a model file and give its ``py:`` name; ``body`` adds methods and attributes to the class of ``model_source``."""

    def write(body: str = "", file: str = "model.py") -> str:
        path = tmp_path / file
        path.write_text(MODEL + body)
        return f"py:{path}:Model"

    return write


@pytest.fixture(scope="session")
def no_leftovers() -> Callable[..., None]:
    """Assert that a folder holds no run and no temporary file."""

    def check(folder: Path, run: bool = False) -> None:
        found = [path for path in folder.rglob("*") if path.is_file()]
        assert not [path for path in found if path.name.endswith(".tmp")]
        if not run:
            assert not [path for path in found if ".store" not in path.parts], found

    return check


@pytest.fixture(scope="session")
def run_of() -> Callable[[Path], dict[str, Any]]:
    """The one run.json below a folder."""

    def read(out: Path) -> dict[str, Any]:
        (path,) = out.rglob("run.json")
        return json.loads(path.read_text())

    return read


@pytest.fixture(scope="session")
def ranked_by_hand() -> Callable[..., tuple[int, int]]:
    """(higher, equal): how many of a pool score higher than, and how many others equal to, one candidate; plain float64 cosines."""

    def count(query: Any, candidates: Mapping[str, Any], name: str) -> tuple[int, int]:
        query = np.asarray(query, np.float64)

        def cosine(vector: Any) -> float:
            vector = np.asarray(vector, np.float64)
            return float(query @ vector / np.sqrt((query @ query) * (vector @ vector)))

        scores = {key: round(cosine(vector), 10) for key, vector in candidates.items()}
        return (
            sum(score > scores[name] for score in scores.values()),
            sum(score == scores[name] for key, score in scores.items() if key != name),
        )

    return count


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hashes remembered for the tests alone."""
    with mock.patch.dict(os.environ, {"OMNIRECALL_CACHE": str(tmp_path_factory.mktemp("cache"))}):
        yield
