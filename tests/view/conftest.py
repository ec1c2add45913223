"""Runs to look at, the pages made of them, a server and a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnirecall.evaluation import evaluate
from omnirecall.view.jobs import Jobs
from omnirecall.view.main import Choices
from omnirecall.view.pages import Page, Pages

BROWSER = ("chromium", "chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--window-size=1280,900",
)


@pytest.fixture(scope="session")
def starter_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cheap models on the whole starter suite."""
    out = tmp_path_factory.mktemp("starter-runs")
    for model in ("random:16", "constant:8"):
        evaluate(model, "starter", out=out)
    return out


@pytest.fixture
def pages_of(tmp_path: Path) -> Iterator[Callable[..., Pages]]:
    """Pages of the runs below a folder; items are waited for, so that each page is whole at once."""
    open_jobs: list[Jobs] = []

    def make(
        *runs: Path,
        data: tuple[Path, ...] = (),
        cards: tuple[Path, ...] = (),
        static: bool = True,
        most: int | None = None,
    ) -> Pages:
        jobs = Jobs()
        open_jobs.append(jobs)
        return Pages(Choices(runs, data, cards).site(jobs), static=static, most_queries=most)

    yield make
    for jobs in open_jobs:
        jobs.close()


@pytest.fixture
def fetched() -> Callable[..., str]:
    """The text of a page, which must be there."""

    def fetch(pages: Pages, path: str, **query: str) -> str:
        page: Page = pages.answer(path, query)
        assert page.status == 200, (path, page.body[:500])
        return page.body.decode()

    return fetch


@pytest.fixture
def rewritten() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    """Change the record of a run."""

    def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
        record = json.loads((folder / "run.json").read_text())
        change(record)
        (folder / "run.json").write_bytes(msgspec.json.encode(record))

    return rewrite


class Server:
    """``omnirecall view`` as a process of its own."""

    def __init__(self, *arguments: object) -> None:
        command = [
            sys.executable,
            "-m",
            "omnirecall",
            "view",
            *map(str, arguments),
            "--no-browser",
            "--port",
            "0",
            "--json",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.communicate(timeout=10)
            said += line
        self.url: str = json.loads(said)["url"]

    def memory(self) -> int:
        """The most memory that it has held, in MiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) // 1024
        raise AssertionError("no VmHWM")

    def stop(self) -> tuple[int, str]:
        """Stop it; its exit code and what it wrote to standard error."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Server]]:
    """Start a server of runs; all are stopped in the end, and must have written no trace."""
    servers: list[Server] = []

    def start(*arguments: object) -> Server:
        servers.append(Server(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        code, said = server.stop()
        assert "Traceback" not in said, said
        assert code == 0, said


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, with a fresh profile; it logs its console and every request."""
    if missing := [name for name in BROWSER if shutil.which(name) is None]:
        pytest.fail(
            f"{' and '.join(missing)} not found: the page is tested in a browser; `apt-get install chromium chromium-driver`"
        )
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()
