"""The pages as files for any web server: every address that can be reached from the first page, written once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from omnirecall.errors import UserError
from omnirecall.files import pretty_json, whole_file, write_whole
from omnirecall.sources.packed import unpacked
from omnirecall.view.pages import Page, Pages
from omnirecall.view.policy import static_files

LINKS = ("href", "src", "data-moving", "data-poster", "data-frames")
MARK = "omnirecall-pages.json"
"""Written last; a folder that holds it may be written over."""


def write_pages(pages: Pages, out: Path, advance: Callable[[int], None]) -> dict[str, int]:
    """Write everything below ``out`` and count it: ``{"pages": n, "media": n, "missing": n}``.

    UserError for a folder that holds something else, or cannot be written.
    """
    _refuse_others(out)
    counts = {"pages": 0, "media": 0, "missing": 0}
    files = static_files()
    waiting, met = [""], {""}
    try:
        while waiting:
            path = waiting.pop()
            if path in files:
                write_whole(out / path, files[path].read_bytes())
                continue
            page = pages.answer(path)
            if path.startswith("m/"):
                counts["media" if page.status == 200 else "missing"] += 1
            else:
                counts["pages"] += 1
            if page.status == 200 or not path.startswith("m/"):
                _write(out / (path + "index.html" if path.endswith("/") or not path else path), page)
            for link in _links(path, page):
                if link not in met:
                    met.add(link)
                    waiting.append(link)
            if "/n/" in path:
                advance(1)
        write_whole(out / MARK, pretty_json(counts))
    except OSError as error:
        raise UserError(f"--export {out}: cannot be written: {error.strerror or error}; give another folder") from None
    return counts


def _refuse_others(out: Path) -> None:
    if out.is_dir():
        if any(out.iterdir()) and not (out / MARK).is_file():
            raise UserError(f"--export {out}: the folder holds other files; give a new one")
    elif out.exists():
        raise UserError(f"--export {out}: is a file; name a folder")


def _write(file: Path, page: Page) -> None:
    if page.ref is None:
        write_whole(file, page.body)
        return
    content = unpacked(page.ref)
    with whole_file(file) as temporary:
        if isinstance(content, Path):
            shutil.copyfile(content, temporary)
        else:
            temporary.write_bytes(content)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in LINKS and value]


def _links(path: str, page: Page) -> Iterator[str]:
    """The addresses that a page leads to, relative to the root."""
    if page.kind.startswith("application/json") and path.startswith("m/"):
        found = [frame["source"] for frame in json.loads(page.body)["frames"]] if page.status == 200 else []
    elif page.kind.startswith("text/html"):
        parser = _Links()
        parser.feed(page.body.decode())
        found = parser.found
    else:
        return
    for link in found:
        target = urlsplit(urljoin(f"http://site/{path}", link))
        if target.netloc == "site" and not target.query:
            yield target.path.removeprefix("/")
