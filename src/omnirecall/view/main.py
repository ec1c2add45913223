"""From what a user names to a served page or a static copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omnirecall.errors import UserError, require
from omnirecall.files import pretty_json
from omnirecall.progress import Progress
from omnirecall.view.jobs import Jobs
from omnirecall.view.runs import Cards
from omnirecall.view.site import Site


@dataclass(frozen=True, slots=True)
class Choices:
    """Folders of runs; where data lie now; card files."""

    runs: tuple[Path, ...]
    data: tuple[Path, ...] = ()
    cards: tuple[Path, ...] = ()

    def site(self, jobs: Jobs) -> Site:
        """The site of these runs; UserError names what is not there."""
        for folder in self.data:
            if not folder.is_dir():
                raise UserError(f"--data {folder}: there is no such folder")
        for file in self.cards:
            if not file.is_file():
                raise UserError(f"--card {file}: there is no such file")
        return Site(self.runs, jobs, Cards(self.data, self.cards))


@dataclass(frozen=True, slots=True)
class Started:
    """The address of the page and how many runs it shows."""

    url: str
    runs: int

    def said(self, as_json: bool) -> str:
        """For a person, or as JSON."""
        if as_json:
            return pretty_json({"url": self.url, "runs": self.runs})
        return f"{self.runs} run{'' if self.runs == 1 else 's'} at {self.url}, stop with Ctrl-C\n"


def show(choices: Choices, port: int, browser: bool, say: Callable[[Started], None]) -> None:
    """Serve the page until it is stopped."""
    require("jinja2", "view")
    require("starlette", "view")
    require("uvicorn", "view")
    from omnirecall.view.pages import Pages
    from omnirecall.view.server import serve

    with Jobs() as jobs:
        site = choices.site(jobs)
        serve(Pages(site), port, browser, lambda url: say(Started(url, len(site.runs()))))


@dataclass(frozen=True, slots=True)
class Exported:
    """What a static copy holds."""

    folder: Path
    pages: int
    media: int
    missing: int

    def said(self, as_json: bool) -> str:
        """For a person, or as JSON."""
        if as_json:
            counts = {"pages": self.pages, "media": self.media, "missing": self.missing}
            return pretty_json({"folder": str(self.folder), **counts})
        missing = f", {self.missing} media could not be had" if self.missing else ""
        return f"{self.pages} pages and {self.media} media in {self.folder}{missing}\n"


def export(choices: Choices, out: Path, most_queries: int, progress: Progress) -> Exported:
    """Write the pages as files for any web server; of each task the ``most_queries`` of greatest loss."""
    require("jinja2", "view")
    from omnirecall.view.export import write_pages
    from omnirecall.view.pages import Pages

    with Jobs() as jobs:
        site = choices.site(jobs)
        queries = sum(
            min(task.queries, most_queries) for run in site.runs().values() for task in run.record.tasks.values()
        )
        with progress("Writing", queries) as advance:
            counts = write_pages(Pages(site, static=True, most_queries=most_queries), out, advance)
    return Exported(out, **counts)
