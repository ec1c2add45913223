"""ACM's layout: composed queries, and parts of clips that answer one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import Meant, assert_meant, assert_ran, config, fresh, table, wav, write

from omnirecall.errors import UserError
from omnirecall.protocol.items import Packed
from omnirecall.sources.load import load_suite, read_task
from omnirecall.sources.tables import NoDataError

SUITE = load_suite("acm")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Meant]]:
    root = tmp_path_factory.mktemp("acm")
    return root, write(root, SUITE.tasks)


def test_every_task_is_what_the_writer_meant(made: tuple[Path, dict[str, Meant]]) -> None:
    names = {"A": "audio", "V": "video", "I": "image", "T": "text"}
    for task in SUITE.tasks:
        data = read_task(made[0], task)
        assert_meant(data, made[1][task.name], task.name)
        asked, given = (frozenset(names[letter] for letter in side.split(",")) for side in task.direction.split("->"))
        assert {item.modalities for item in data.queries} == {asked}
        assert {item.modalities for item in data.candidates} == {given}
        for item in (*data.queries, *data.candidates):
            for part in (item.audio, item.video, item.image):
                assert part is None or part.is_file()


def test_every_task_runs(made: tuple[Path, dict[str, Meant]], command: Callable, tmp_path: Path) -> None:
    done = command("run", "acm", "--data", made[0], "--model", "random:16", "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    assert_ran(done.json, made[1])


def test_the_source_stays_in_the_pool_and_names_the_cluster(made: tuple[Path, dict[str, Meant]]) -> None:
    data = read_task(made[0], SUITE.task("A,T->A"))
    assert [item.cluster for item in data.queries] == ["VGG-Sound/clip0", "VGG-Sound/clip0", "VGG-Sound/clip1"]
    assert data.queries[0].audio == data.candidates[0].audio
    assert data.queries[0].text == "but louder s0"
    assert read_task(made[0], SUITE.task("V->A")).queries[0].cluster == "VGG-Sound/clip0"


def test_media_by_id_or_in_the_table(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    root = fresh(tmp_path / "data", made[0])
    config(
        root / "ACM",
        "audio_visual_candidates",
        "test",
        [{"audio_id": f"clip{place}", "audio": wav(place)} for place in range(4)],
        ["audio"],
    )
    data = read_task(root, SUITE.task("A->V"))
    assert all(isinstance(item.audio, Packed) for item in data.queries)
    assert data.candidates[3].video == root.joinpath("ACM/media/videos/clip3.mp4")
    assert data.judgments["clip1"] == {"clip1": 1.0}


def test_what_is_missing_or_damaged(made: tuple[Path, dict[str, Meant]], tmp_path: Path) -> None:
    root = fresh(tmp_path / "data", made[0])
    path = root / "ACM/audio_visual_candidates/test-00000-of-00001.parquet"
    table(path, [{"name": "clip0"}])
    with pytest.raises(UserError, match=r"no column of ids, which is called id or audio_id .*; it has name"):
        read_task(root, SUITE.task("A->V"))
    path.unlink()
    with pytest.raises(NoDataError, match="audio_visual_candidates"):
        read_task(root, SUITE.task("A->V"))
    (root / "ACM/media").rename(root / "gone")
    with pytest.raises(NoDataError, match="ACM/media: no such folder"):
        read_task(root, SUITE.task("A,T->A"))
