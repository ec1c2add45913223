"""Every command and every line of Python shown in a document is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import REPOSITORY, shell

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+) ?(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str, kind: str = "") -> list[str]:
    """The fenced blocks of a page in that language; ``kind`` is the word after it."""
    return [text for lang, word, text in BLOCK.findall(page.read_text()) if lang == language and word == kind]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """The `sh` blocks of a page run one after another in an empty folder."""
    script = "".join(blocks(page, "sh"))
    done = shell(script, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_runs(page: Path, tmp_path: Path) -> None:
    """The `python` blocks of a page run in an empty folder."""
    for number, script in enumerate(blocks(page, "python")):
        (tmp_path / f"block{number}.py").write_text(script)
        done = shell(f"python block{number}.py", tmp_path)
        assert done.returncode == 0, done.stderr


def test_make_targets_exist() -> None:
    """The commands that need the repository are targets of the Makefile; demo is run by its own test, and test is this."""
    for page in PAGES:
        for line in "".join(blocks(page, "sh", "repository")).splitlines():
            assert shell(f"{line} --dry-run", REPOSITORY).returncode == 0


def test_links_lead_somewhere() -> None:
    """Relative links and pictures of every page exist."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
