"""WebVid-CoVR's csv: references, edits, targets, and the reference masked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from miniatures import assert_meant, write

from omnirecall.errors import UserError
from omnirecall.sources.load import load_suite, read_task
from omnirecall.sources.tables import NoDataError

TASK = load_suite("omniret").task("webvid_covr")


def test_the_task_is_what_the_writer_meant(tmp_path: Path) -> None:
    meant = write(tmp_path, [TASK])
    data = read_task(tmp_path, TASK)
    assert_meant(data, meant["webvid_covr"], "webvid_covr")
    assert [item.modalities for item in data.queries] == [{"text", "video"}] * 3
    assert data.queries[2].video == tmp_path / "WebVid-CoVR/WebVid/8M/train/003/3.mp4"
    assert data.queries[2].cluster == "WebVid-CoVR/003/3"
    assert not read_task(tmp_path, msgspec.structs.replace(TASK, own_source="keep")).exclude


def test_what_is_missing_or_damaged(tmp_path: Path) -> None:
    write(tmp_path, [TASK])
    path = tmp_path / "WebVid-CoVR/webvid8m-covr_test.csv"
    whole = path.read_text()
    path.write_text(whole[: whole.index("002/2")])
    with pytest.raises(
        UserError, match=r"covr_test\.csv: line 4: a cell of pth1, pth2, edit is empty; .*fetch it again"
    ):
        read_task(tmp_path, TASK)
    path.write_text(whole.replace("edit", "change"))
    with pytest.raises(UserError, match=r"covr_test\.csv: no column edit; it has txt1"):
        read_task(tmp_path, TASK)
    path.write_text(whole.splitlines()[0] + "\n")
    with pytest.raises(UserError, match="no rows"):
        read_task(tmp_path, TASK)
    path.write_text(whole.replace("002/2", "../../2"))
    with pytest.raises(UserError, match=r"line 4: .*leads outside"):
        read_task(tmp_path, TASK)
    path.unlink()
    with pytest.raises(NoDataError, match=r"covr_test\.csv: no such file"):
        read_task(tmp_path, TASK)
