"""libav draws text as a film of letters; here it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnirecall.errors import UserError
from omnirecall.media.video import load_frames
from omnirecall.protocol.suites import MediaPolicy


@pytest.mark.parametrize("name", ["words.txt", "words.nfo", "words.mp4"])
def test_text_is_refused(tmp_path: Path, name: str) -> None:
    """Whatever the file is called."""
    (tmp_path / name).write_text("hello world\n" * 50)
    with pytest.raises(UserError, match=f"^item x: .*{name}"):
        load_frames(tmp_path / name, MediaPolicy(), "item x")
