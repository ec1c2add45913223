"""The static copy: whole, closed in itself, and the same as what is served."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from omnirecall.evaluation import evaluate
from omnirecall.sources.load import PACKAGE
from omnirecall.view.export import MARK

LINK = re.compile(r'(?:href|src|data-moving|data-poster|data-frames)="([^"]*)"')


@pytest.fixture(scope="module")
def copy(
    tmp_path_factory: pytest.TempPathFactory, own_data: Callable[..., Path], command: Callable[..., Any]
) -> tuple[Path, Any, Path]:
    """A copy of two runs of a small task with media: its folder, what the command said, and the runs."""
    tmp = tmp_path_factory.mktemp("export")
    data = tmp / "data"
    data.mkdir()
    media = PACKAGE / "starter" / "media"
    names = [sorted((media / kind).iterdir())[0] for kind in ("image", "video", "audio")]
    for source in names:
        (data / f"the {source.name}").write_bytes(source.read_bytes())
    own_data(
        data,
        queries=[{"id": f"q{n}", "text": f"query {n}"} for n in range(12)],
        candidates=[
            {"id": kind, kind: f"the {source.name}"}
            for kind, source in zip(("image", "video", "audio"), names, strict=True)
        ],
        qrels=[(f"q{n}", "video", 1) for n in range(12)],
    )
    for model in ("random:8", "random:4"):
        evaluate(model, data, out=tmp / "runs")
    said = command("view", tmp / "runs", "--export", tmp / "copy", "--export-queries", 11, "--json")
    assert said.code == 0, said.err
    return tmp / "copy", said.json, tmp / "runs"


def test_every_link_leads_to_a_file_of_the_copy(copy: tuple[Path, Any, Path]) -> None:
    folder, _, _ = copy
    pages = sorted(folder.rglob("*.html"))
    checked = 0
    for page in pages:
        here = page.relative_to(folder).as_posix().removesuffix("index.html")
        for link in LINK.findall(page.read_text()):
            if link.startswith("#"):
                continue
            assert "?" not in link, (here, link)
            target = urlsplit(urljoin(f"http://site/{here}", link))
            assert target.netloc == "site", (here, link)
            file = folder / target.path.removeprefix("/")
            assert (file / "index.html").is_file() if target.path.endswith("/") else file.is_file(), (here, link)
            checked += 1
    assert checked > 100


def test_counts(copy: tuple[Path, Any, Path]) -> None:
    folder, said, _ = copy
    assert said["pages"] == len(
        [path for path in folder.rglob("*") if path.suffix in (".html", ".csv") or path.name == "pairs.json"]
    )
    assert said["media"] == len([path for path in (folder / "m").rglob("*") if path.is_file()])
    assert said["missing"] == 0


def test_only_so_many_queries(copy: tuple[Path, Any, Path]) -> None:
    folder, _, runs = copy
    for run in (path.parent.name for path in runs.rglob("run.json")):
        assert len(list((folder / "r" / run / "t" / "mine" / "n").iterdir())) == 11


def test_media_are_copied(copy: tuple[Path, Any, Path]) -> None:
    folder, _, runs = copy
    kept = {path.read_bytes() for path in (folder / "m").rglob("*") if path.is_file()}
    for source in (runs.parent / "data").glob("the *"):
        assert source.read_bytes() in kept


def test_policy_is_in_the_pages(copy: tuple[Path, Any, Path]) -> None:
    for page in copy[0].rglob("*.html"):
        assert "default-src &#39;none&#39;" in page.read_text()


def test_written_over_but_nothing_else(
    copy: tuple[Path, Any, Path], tmp_path: Path, command: Callable[..., Any], refused: Callable[..., None]
) -> None:
    folder, _, runs = copy
    assert (folder / MARK).is_file()
    assert command("view", runs, "--export", folder, "--export-queries", 11).code == 0
    (tmp_path / "mine.txt").write_text("mine")
    refused(command("view", runs, "--export", tmp_path), tmp_path)
    refused(command("view", runs, "--export", tmp_path / "mine.txt"), tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
