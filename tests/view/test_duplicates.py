"""Candidates above a relevant one that hold the same."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from omnirecall.evaluation import evaluate
from omnirecall.sources.load import PACKAGE
from omnirecall.view.duplicates import NEAR, difference, small, words
from omnirecall.view.pages import Pages

CLOCKS = ("1f550", "1f551", "1f553", "1f554")
"""Faces of a clock: the same but for a hand."""
RENDERS = sorted((PACKAGE / "starter" / "media" / "image").iterdir())


def put_first(run: Path, order: Mapping[str, list[str]], relevant: Mapping[str, str]) -> None:
    """Rewrite the ranks of a run so that each query's list is ``order`` and its relevant candidate stands where it says."""
    path = run / "tasks" / "mine.parquet"
    table = pq.read_table(path)
    ids = table.column("query_id").to_pylist()
    columns = {
        "top_ids": [order[name] for name in ids],
        "top_scores": [[1 - place / 100 for place in range(len(order[name]))] for name in ids],
        "greater": [[order[name].index(relevant[name])] for name in ids],
        "positive_scores": [[1 - order[name].index(relevant[name]) / 100] for name in ids],
    }
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    pq.write_table(table, path)


@pytest.fixture
def planted(tmp_path: Path, own_data: Callable[..., Path]) -> Path:
    """Four queries: a copied picture above, a recompressed one, a reworded text and a different picture; the run's folder."""
    data = tmp_path / "data"
    data.mkdir()
    picture = Image.open(RENDERS[0]).convert("RGBA")
    white = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    white.save(data / "a.png")
    white.save(data / "copy of a.png")
    white.resize((200, 200), Image.Resampling.BICUBIC).save(data / "near.jpg", quality=70)
    Image.open(RENDERS[100]).save(data / "other.webp", lossless=True)
    own_data(
        data,
        queries=[{"id": name, "text": name} for name in ("copied", "recompressed", "reworded", "different")],
        candidates=[
            {"id": "a", "image": "a.png"},
            {"id": "copy", "image": "copy of a.png"},
            {"id": "near", "image": "near.jpg"},
            {"id": "other", "image": "other.webp"},
            {"id": "t1", "text": "A man, riding a horse!"},
            {"id": "t2", "text": "a man riding   a HORSE"},
            {"id": "t3", "text": "a horse riding a man"},
        ],
        qrels=[("copied", "a", 1), ("recompressed", "a", 1), ("reworded", "t1", 1), ("different", "a", 1)],
    )
    run = Path(evaluate("random:8", data, out=tmp_path / "runs").folder)
    put_first(
        run,
        {
            "copied": ["copy", "a", "near", "other", "t1", "t2", "t3"],
            "recompressed": ["t1", "near", "other", "a", "copy", "t2", "t3"],
            "reworded": ["t2", "t3", "other", "t1", "a", "copy", "near"],
            "different": ["other", "a", "copy", "near", "t1", "t2", "t3"],
        },
        {"copied": "a", "recompressed": "a", "reworded": "t1", "different": "a"},
    )
    return run


def test_planted_pairs_are_found_and_no_others(
    planted: Path, pages_of: Callable[..., Pages], fetched: Callable[..., str]
) -> None:
    pages = pages_of(planted.parent.parent)
    base = f"r/{planted.name}/t/mine/duplicates/"
    found = json.loads(pages.answer(base + "pairs.json").body)
    pairs = {(one["query"], one["candidate"], one["relevant"], one["kind"]) for one in found["pairs"]}
    assert pairs == {
        ("copied", "copy", "a", "same"),
        ("recompressed", "near", "a", "near"),
        ("reworded", "t2", "t1", "same"),
        ("reworded", "t3", "t1", "near"),
    }
    ranks = {(one["query"], one["candidate"]): (one["candidate_rank"], one["relevant_rank"]) for one in found["pairs"]}
    assert ranks["recompressed", "near"] == (2, 4)
    assert ranks["reworded", "t3"] == (2, 4)
    rows = list(csv.DictReader(io.StringIO(pages.answer(base + "pairs.csv").body.decode())))
    assert {(row["query"], row["candidate"], row["relevant"], row["kind"]) for row in rows} == pairs
    text = fetched(pages, base)
    assert "<strong>2</strong> the same and <strong>2</strong> near, in 3 queries" in text


def test_near_pictures() -> None:
    persons = [
        path for path in RENDERS if "200d" in path.stem
    ]  # the renders most like each other: a man, a woman, a person
    pictures = [Image.open(path).convert("RGB") for path in (*persons, *RENDERS[:40])]
    for picture in pictures[:60]:
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=60)
        assert difference(small(picture), small(Image.open(out))) <= NEAR
    hashes = [small(picture) for picture in pictures]
    near = [1 for place, one in enumerate(hashes) for other in hashes[:place] if difference(one, other) <= NEAR]
    assert len(persons) > 70
    assert len(near) <= 1
    clocks = [small(Image.open(path).convert("RGB")) for path in RENDERS if path.stem.endswith(CLOCKS)]
    assert len(clocks) == len(CLOCKS)
    assert min(difference(one, other) for place, one in enumerate(clocks) for other in clocks[:place]) > NEAR
    assert difference(small(pictures[0]), small(pictures[0].resize((300, 100)))) > NEAR


def test_words() -> None:
    assert words("A man, riding\ta horse!") == ("a", "man", "riding", "a", "horse")
    assert words("\uff21man") == ("aman",)
    assert words("...") == ()


def test_videos_and_sounds(tmp_path: Path, own_data: Callable[..., Path], pages_of: Callable[..., Pages]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    videos = sorted((PACKAGE / "starter" / "media" / "video").iterdir())
    sounds = sorted((PACKAGE / "starter" / "media" / "audio").iterdir())
    for name, source in (("a", videos[0]), ("b", videos[0]), ("c", videos[1])):
        (data / f"{name}{source.suffix}").write_bytes(source.read_bytes())
    for name, source in (("x", sounds[0]), ("y", sounds[0]), ("z", sounds[1])):
        (data / f"{name}{source.suffix}").write_bytes(source.read_bytes())
    v, s = videos[0].suffix, sounds[0].suffix
    own_data(
        data,
        queries=[{"id": "video", "text": "v"}, {"id": "sound", "text": "s"}],
        candidates=[{"id": name, "video": f"{name}{v}"} for name in "abc"]
        + [{"id": name, "audio": f"{name}{s}"} for name in "xyz"],
        qrels=[("video", "a", 1), ("sound", "x", 1)],
    )
    run = Path(evaluate("random:8", data, out=tmp_path / "runs").folder)
    put_first(run, {"video": [*"bcaxyz"], "sound": [*"zyxabc"]}, {"video": "a", "sound": "x"})
    body = pages_of(tmp_path / "runs").answer(f"r/{run.name}/t/mine/duplicates/pairs.json").body
    assert {(one["query"], one["candidate"]) for one in json.loads(body)["pairs"]} == {("video", "b"), ("sound", "y")}
