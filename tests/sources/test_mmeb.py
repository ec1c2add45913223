"""MMEB-V2's image, video and document layouts: lists, names of candidates, texts byte for byte, and damage."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from miniatures import Meant, assert_meant, assert_ran, fresh, put, starter, table, write
from numpy.typing import NDArray

from omnirecall import evaluate
from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import Role
from omnirecall.protocol.items import Packed, worded
from omnirecall.sources.load import load_suite, read_task
from omnirecall.sources.packed import unpacked
from omnirecall.sources.tables import NoDataError

SUITE = load_suite("mmeb-v2")
GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "mmeb_texts.json").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Meant]]:
    root = tmp_path_factory.mktemp("mmeb")
    return root, write(root, SUITE.tasks)


def rows_of(root: Path, name: str) -> Path:
    """The parquet file of an image task's rows."""
    return root / "ziyjiang/MMEB_Test_Instruct" / name / "test-00000-of-00001.parquet"


def test_every_task_is_what_the_writer_meant(made: tuple[Path, dict[str, Meant]]) -> None:
    root, meant = made
    assert len(meant) == 78
    for task in SUITE.tasks:
        assert_meant(read_task(root, task), meant[task.name], task.name)


def test_every_task_runs(made: tuple[Path, dict[str, Meant]], command: Callable, tmp_path: Path) -> None:
    done = command("run", "mmeb-v2", "--data", made[0], "--model", "random:16", "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    assert_ran(done.json, made[1])


def test_momentseeker_keeps_its_repeated_rows_in_the_older_version(tmp_path: Path) -> None:
    task = load_suite("mmeb-v2-momentseeker-1800").task("MomentSeeker")
    meant = write(tmp_path, [task])
    assert_meant(read_task(tmp_path, task), meant["MomentSeeker"], "MomentSeeker")
    assert len(meant["MomentSeeker"].relevant) == 4


@pytest.mark.parametrize("name", GOLDEN["tasks"])
def test_texts_are_those_of_the_authors_code(made: tuple[Path, dict[str, Meant]], name: str) -> None:
    data = read_task(made[0], SUITE.task(name))
    expected = GOLDEN["tasks"][name]
    assert [worded(item, GOLDEN["tokens"]).text for item in data.queries[:3]] == expected["queries"]
    texts = {item.id: worded(item, GOLDEN["tokens"]).text for item in data.candidates}
    assert {name: texts[name] for name in expected["candidates"]} == expected["candidates"]


def test_a_model_without_tokens_gets_the_text_without_them(made: tuple[Path, dict[str, Meant]]) -> None:
    query = read_task(made[0], SUITE.task("OK-VQA")).queries[0]
    assert worded(query, {}).text == "\nRepresent the given image query 0\n"
    query = read_task(made[0], SUITE.task("WebQA")).queries[0]
    assert (query.text, query.instruction, worded(query, {}).text) == ("query 0", "Find it:", "Find it: query 0\n")
    clip = read_task(made[0], SUITE.task("MSVD")).candidates[0]
    assert (clip.text, worded(clip, {}).text) == (None, "Understand the content of the provided video.")
    assert worded(clip, {"video": "<v>"}).text == "<v> Understand the content of the provided video."


class Listener:
    """Notes what it is asked to embed."""

    name = fingerprint = "listener"
    dimension, symmetric, sampling_rate, default_prompt, notes = 4, False, 16000, "model", ()
    media_tokens: Mapping[str, str] = {"image": "<picture>"}

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None]] = []

    def supports(self, modalities: Set[str]) -> bool:
        return True

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> NDArray[np.float32]:
        self.heard += [(item.instruction, item.text) for item in items]
        return np.array([[1, len(item.text or ""), len(item.id), 1] for item in items], np.float32)


def test_every_prompt_mode_gives_its_own_text(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    heard = {}
    for prompt in ("model", "card", "none"):
        listener = Listener()
        evaluate(listener, "mmeb-v2", data=made[0], tasks=("OK-VQA",), prompt=prompt, out=tmp_path / prompt)
        heard[prompt] = listener.heard
    assert ("Represent the given image", "query 0") in heard["model"]
    assert ("", "<picture>\nRepresent the given image query 0\n") in heard["card"]
    assert ("", "query 0") in heard["none"]
    assert all(("", "label 0") in lines for lines in heard.values())


def test_one_image_with_two_captions_is_one_candidate_and_by_caption_it_is_two(
    made: tuple[Path, dict[str, Meant]], tmp_path: Path
) -> None:
    root = fresh(tmp_path / "data", made[0])
    for name, ids in (
        ("WebQA", ["WebQA/00.jpg", "WebQA/02.jpg"]),
        (
            "RefCOCO-Matching",
            ["RefCOCO-Matching/00.jpg:one", "RefCOCO-Matching/00.jpg:other", "RefCOCO-Matching/02.jpg:x"],
        ),
    ):
        (row, *_) = pq.read_table(rows_of(root, name)).to_pylist()
        paths = [f"{name}/00.jpg", f"{name}/00.jpg", f"{name}/02.jpg"]
        table(rows_of(root, name), [{**row, "tgt_img_path": paths, "tgt_text": ['"one"', '"other"', '"x"']}])
        data = read_task(root, SUITE.task(name))
        assert [item.id for item in data.candidates] == ids
        assert data.candidates[0].text == '"one"'
        assert data.judgments["0"] == {ids[0]: 1.0}
        assert data.defects.get("duplicate-candidate", 0) == 3 - len(ids)


def test_an_option_without_a_stop_shrinks_to_its_last_character(
    made: tuple[Path, dict[str, Meant]], tmp_path: Path
) -> None:
    root = fresh(tmp_path / "data", made[0])
    path = root / "VLM2Vec/Video-MME/data/test-00000-of-00001.parquet"
    (row,) = pq.read_table(path).to_pylist()
    table(path, [{**row, "options": ["A. red.", "green", "C. blue.", "D. e. g. this."]}])
    data = read_task(root, SUITE.task("Video-MME"))
    assert {item.id: item.text for item in data.candidates} == {
        "A. red.": "red",
        "green": "n",
        "C. blue.": "blue",
        "D. e. g. this.": "e. g. this",
    }


def test_a_film_stands_in_for_frames(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    root = fresh(tmp_path / "data", made[0])
    stored = root / "MMEB-V2/video-tasks/frames/video_ret/MSVD/v1"
    films = root / "MMEB-V2/video-tasks/videos/video_ret/MSVD/v1.mp4"
    assert read_task(root, SUITE.task("MSVD")).candidates[1].video == stored
    stored.rename(root / "gone")
    put(films, starter("video")[0].read_bytes())
    assert read_task(root, SUITE.task("MSVD")).candidates[1].video == films


def test_the_first_thousand_rows_of_smthsmthv2(made: tuple[Path, dict[str, Meant]]) -> None:
    task = SUITE.task("SmthSmthV2")
    assert len(read_task(made[0], msgspec.structs.replace(task, data={**task.data, "limit": 1})).queries) == 1


def test_documents_stay_in_their_table_until_wanted(made: tuple[Path, dict[str, Meant]]) -> None:
    data = read_task(made[0], SUITE.task("VisRAG_ChartQA"))
    pages = [item.image for item in data.candidates]
    assert all(isinstance(page, Packed) and len(page) < 500 for page in pages)
    rows = pq.read_table(next((made[0] / "openbmb/VisRAG-Ret-Test-ChartQA/corpus").iterdir())).to_pylist()
    assert [unpacked(page) for page in reversed(pages) if page] == [row["image"]["bytes"] for row in reversed(rows)]
    assert [data.candidates[place].id for place in range(3)] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: {name: value for name, value in row.items() if name != "tgt_text"}, "no column tgt_text"),
        (lambda row: {**row, "qry_img_path": "../../secret.jpg"}, "leads outside"),
        (lambda row: {**row, "tgt_text": []}, "the list of targets is empty"),
    ],
)
def test_damaged_rows(made: tuple[Path, dict[str, Meant]], tmp_path: Path, change: Callable, said: str) -> None:
    root = fresh(tmp_path / "data", made[0])
    path = rows_of(root, "OK-VQA")
    rows = pq.read_table(path).to_pylist()
    table(path, [change(row) for row in rows])
    with pytest.raises(UserError, match=said) as error:
        read_task(root, SUITE.task("OK-VQA"))
    assert str(path.parent) in str(error.value)
    assert not isinstance(error.value, NoDataError)


def test_damaged_and_missing_tables(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    root = fresh(tmp_path / "data", made[0])
    path, task = rows_of(root, "OK-VQA"), SUITE.task("OK-VQA")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"test-00000-of-00001\.parquet: not a whole parquet file .*; fetch it again"):
        read_task(root, task)
    path.rename(path.with_name("test-00000-of-00002.parquet"))
    with pytest.raises(UserError, match="1 of 2 parts are there; fetch the rest"):
        read_task(root, task)
    path.with_name("test-00000-of-00002.parquet").unlink()
    with pytest.raises(NoDataError, match=r"OK-VQA/test-\*\.parquet: no such files; OK-VQA needs them.*--data"):
        read_task(root, task)
    (root / "MMEB-V2" / "image-tasks").rename(root / "gone")
    with pytest.raises(NoDataError, match="image-tasks: no such folder"):
        read_task(root, SUITE.task("NIGHTS"))
    (root / "MMEB-V2/video-tasks/frames/video_ret/MSVD").rename(root / "gone2")
    with pytest.raises(NoDataError, match="video_ret/MSVD: no such folder"):
        read_task(root, SUITE.task("MSVD"))


def test_a_moment_without_its_folder_is_missing_media(
    made: tuple[Path, dict[str, Meant]], command: Callable, refused: Callable, tmp_path: Path
) -> None:
    root = fresh(tmp_path / "data", made[0])
    (root / "MMEB-V2/video-tasks/frames/video_mret/QVHighlight/film1").rename(root / "gone")
    run = (
        "run",
        "mmeb-v2",
        "--data",
        root,
        "--tasks",
        "QVHighlight",
        "--model",
        "random:16",
        "--out",
        tmp_path / "runs",
    )
    refused(command(*run), "film1", "item 1", "--on-missing skip")
    done = command(*run, "--on-missing", "skip", "--json")
    assert (done.json["tasks"]["QVHighlight"]["queries"], done.json["tasks"]["QVHighlight"]["pool"]) == (2, 3)
    (root / "MMEB-V2/video-tasks/frames/video_mret/QVHighlight/film0/positive").rename(root / "gone2")
    refused(command(*run), "row 0", "film0", "positive")
