"""UVRB's layout, and what a run does about data that are missing, damaged or cannot be decoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import Meant, assert_meant, assert_ran, fresh, put, write

from omnirecall.errors import UserError
from omnirecall.protocol.items import TaskData
from omnirecall.sources.load import load_suite, read_task

SUITE = load_suite("uvrb")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Meant]]:
    root = tmp_path_factory.mktemp("uvrb")
    return root, write(root, SUITE.tasks)


def jsonl_of(root: Path, name: str, part: str) -> Path:
    return root / "UVRB" / name / "UVRB" / name / "jsonl" / f"{part}.jsonl"


def read(root: Path, name: str) -> TaskData:
    return read_task(root, SUITE.task(name))


def test_every_task_is_what_the_writer_meant(made: tuple[Path, dict[str, Meant]]) -> None:
    root, meant = made
    assert len(meant) == 16
    for task in SUITE.tasks:
        assert_meant(read_task(root, task), meant[task.name], task.name)


def test_every_task_runs(made: tuple[Path, dict[str, Meant]], command: Callable, tmp_path: Path) -> None:
    root, meant = made
    done = command("run", "uvrb", "--data", root, "--model", "random:16", "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    assert_ran(done.json, meant)
    assert done.json["deviations"] == [
        "other numbers of queries or candidates than the card in 16 tasks: MSRVTT, DiDeMo, CRB-G and 13 more"
    ]


def test_items_are_pixels_and_words_only(made: tuple[Path, dict[str, Meant]]) -> None:
    for name, parts in (
        ("MSRVTT", {"text"}),
        ("MS-TI", {"text", "image"}),
        ("MS-TV", {"text", "video"}),
        ("MSRVTT-I2V", {"image"}),
        ("LoVR-C2V", {"video"}),
    ):
        data = read(made[0], name)
        assert {item.modalities for item in data.queries} == {frozenset(parts)}
        assert {item.modalities for item in data.candidates} == {frozenset({"video"})}
        for item in (*data.queries, *data.candidates):
            assert all(ref is None or ref.is_file() for ref in (item.image, item.video))
    assert read(made[0], "DREAM-E").queries[0].cluster == "DREAM-1K/v0.mp4"


def test_the_folder_may_be_the_data_set_itself(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    (tmp_path / "UVRB").mkdir()
    (tmp_path / "UVRB" / "CMRB").symlink_to(made[0] / "UVRB" / "CMRB" / "UVRB" / "CMRB")
    assert_meant(read(tmp_path, "CMRB"), made[1]["CMRB"], "CMRB")
    assert_meant(read(tmp_path / "UVRB", "CMRB"), made[1]["CMRB"], "CMRB")


def test_ids_may_be_numbers_and_videos_lie_deeper(tmp_path: Path) -> None:
    folder = tmp_path / "UVRB" / "VDC-O"
    put(folder / "videos" / "deep" / "a.mp4", b"film")
    for part, rows in (
        ("corpus", [{"id": 1, "video": "videos/deep/a.mp4"}, {"id": 2, "video": "deep/a.mp4"}]),
        ("queries", [{"id": 7, "text": "a film"}]),
        ("instances", [{"qid": 7, "pos": [1]}, {"qid": 7, "pos": [2]}]),
    ):
        put(folder / "jsonl" / f"{part}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    data = read(tmp_path, "VDC-O")
    assert data.judgments == {"7": {"1": 1.0, "2": 1.0}}
    assert {item.video for item in data.candidates} == {folder / "videos" / "deep" / "a.mp4"}


def test_without_negatives_there_is_no_data_and_no_other_pool(
    made: tuple[Path, dict[str, Meant]], command: Callable, tmp_path: Path
) -> None:
    root = fresh(tmp_path / "data", made[0])
    path = jsonl_of(root, "MS-TI", "instances")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    put(path, "".join(json.dumps({"qid": row["qid"], "pos": row["pos"]}) + "\n" for row in rows).encode())
    done = command("run", "uvrb", "--data", root, "--model", "random:16", "--out", tmp_path / "runs", "--json")
    assert done.code == 0, done.err
    task = done.json["tasks"]["MS-TI"]
    assert (task["status"], task["value"]) == ("no-data", None)
    assert str(path) in task["reason"]
    assert "neg" in task["reason"]
    assert done.json["tasks"]["MS-TV"]["status"] == "ok"
    incomplete = {name for name, mean in done.json["means"].items() if not mean["complete"]}
    assert incomplete == {"CMP", "AVG_D", "AVG_A"}
    assert all(done.json["means"][name]["value"] is None for name in incomplete)
    shown = command("report", done.json["folder"], "--format", "markdown").out
    assert "| MS-TI | I,T->V | 0 | 0 | precision@1 | no-data |" in shown
    assert "neg" in shown


def test_a_missing_folder_leaves_its_task_without_data(
    made: tuple[Path, dict[str, Meant]], command: Callable, refused: Callable, tmp_path: Path
) -> None:
    run = ("run", "uvrb", "--model", "random:16", "--out", tmp_path / "runs", "--tasks", "CRB-*", "--json", "--data")
    root = fresh(tmp_path / "data", made[0])
    (root / "UVRB" / "CRB-S").rename(root / "elsewhere")
    jsonl_of(root, "CRB-T", "corpus").unlink()
    refused(command(*run, root), root / "UVRB" / "CRB-S", "--data", "--on-missing skip")
    skipped = command(*run, root, "--on-missing", "skip").json
    assert "no data for 2 of 16 tasks: CRB-S, CRB-T" in skipped["deviations"]
    tasks = skipped["tasks"]
    assert {name: task["status"] for name, task in tasks.items()} == {
        "CRB-G": "ok",
        "CRB-S": "no-data",
        "CRB-T": "no-data",
    }
    assert str(root / "UVRB" / "CRB-S") in tasks["CRB-S"]["reason"]
    assert str(jsonl_of(root, "CRB-T", "corpus")) in tasks["CRB-T"]["reason"]
    assert "--data" in tasks["CRB-S"]["reason"]
    (tmp_path / "empty").mkdir()
    skip = ("--on-missing", "skip")
    refused(command(*run, tmp_path / "empty", *skip), tmp_path / "empty", "no task of uvrb has its data", "--data")


def test_a_truncated_file_is_named_with_its_line(
    made: tuple[Path, dict[str, Meant]], command: Callable, refused: Callable, tmp_path: Path
) -> None:
    root = fresh(tmp_path / "data", made[0])
    for part, line in (("queries", 3), ("corpus", 3), ("instances", 4)):
        path = jsonl_of(root, "CMRB", part)
        whole = path.read_bytes()
        path.write_bytes(whole[:-9])
        done = command(
            "run", "uvrb", "--data", root, "--model", "random:16", "--tasks", "CMRB", "--out", tmp_path / "runs"
        )
        refused(done, path, f"line {line}", "fetch it again")
        path.write_bytes(whole)


def test_a_path_that_leads_out_is_refused(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    root = fresh(tmp_path / "data", made[0])
    path = jsonl_of(root, "CMRB", "corpus")
    good = path.read_text()
    for name in ("../../x.mp4", "/etc/passwd", "a/../../x.mp4", ""):
        path.write_text(good.replace('"v1.mp4"', json.dumps(name)))
        with pytest.raises(UserError, match=r"corpus\.jsonl: line 2: item CMRB-c1: .*leads outside"):
            read(root, "CMRB")


def spoiled(made: tuple[Path, dict[str, Meant]], folder: Path) -> Path:
    """MSRVTT-I2V with a candidate that is no film, MS-TV with a query's film gone."""
    root = fresh(folder, made[0])
    home = root / "UVRB"
    (home / "DREAM-E/UVRB/DREAM-E/videos/v1.mp4").write_bytes(b"no film at all" * 99)
    (home / "LoVR-C2V/UVRB/LoVR-C2V/videos/v1.mp4").unlink()
    return root


def test_missing_and_broken_media_end_the_run(
    made: tuple[Path, dict[str, Meant]], command: Callable, refused: Callable, tmp_path: Path
) -> None:
    root = spoiled(made, tmp_path / "data")
    run = ("run", "uvrb", "--data", root, "--model", "random:16", "--out", tmp_path / "runs", "--tasks")
    refused(command(*run, "DREAM-E"), "DREAM-E/UVRB/DREAM-E/videos/v1.mp4", "item DREAM-E-c1", "--on-missing skip")
    refused(
        command(*run, "LoVR-C2V"),
        "LoVR-C2V/UVRB/LoVR-C2V/videos/v1.mp4",
        "missing",
        "--on-missing skip",
        "item LoVR-C2V-q1",
    )


def test_skipped_items_count_as_not_retrieved(
    made: tuple[Path, dict[str, Meant]], command: Callable, tmp_path: Path
) -> None:
    root = spoiled(made, tmp_path / "data")
    done = command(
        "run", "uvrb", "--data", root, "--model", "random:16", "--out", tmp_path / "runs", "--on-missing", "skip", "--json",
        "--tasks", "DREAM-E", "--tasks", "LoVR-C2V",
    )  # fmt: skip
    assert done.code == 0, done.err
    film, clips = done.json["tasks"]["DREAM-E"], done.json["tasks"]["LoVR-C2V"]
    assert (film["queries"], film["pool"], film["relevant_outside_pool"]) == (3, 2, 1)
    assert (clips["queries"], clips["pool"], clips["relevant_outside_pool"]) == (3, 2, 0)
    assert film["measures"]["hit@10"]["value"] == pytest.approx(2 / 3)
    assert clips["measures"]["hit@10"]["value"] == pytest.approx(2 / 3)
    said = " ".join(done.json["deviations"])
    assert "DREAM-E-c1" in said
    assert "1 queries (LoVR-C2V-q1) and 1 candidates (LoVR-C2V-c1)" in said
    assert "count as not retrieved" in said
    again = command(
        "run", "uvrb", "--data", root, "--model", "random:16", "--out", tmp_path / "runs", "--on-missing", "skip", "--json",
        "--tasks", "DREAM-E", "--tasks", "LoVR-C2V",
    )  # fmt: skip
    assert again.json["tasks"] == done.json["tasks"]
    assert again.json["embedded"]["now"] == 0
