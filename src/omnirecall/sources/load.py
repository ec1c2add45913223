"""From a suite's name or folder to its tasks' rows."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, shipped_card, shipped_cards
from omnirecall.protocol.items import Ids, TaskData
from omnirecall.protocol.suites import Suite, Task
from omnirecall.sources import acm, beir_parquet, covr, folder, mbeir, mmeb, mmeb_video, uvrb
from omnirecall.sources.checks import Places, check_grades, check_ids

LAYOUTS: dict[str, Callable[[Path, Task], TaskData]] = {
    "folder": folder.read_task,
    "uvrb": uvrb.read_task,
    "mbeir": mbeir.read_task,
    "mmeb-image": mmeb.read_images,
    "mmeb-video": mmeb_video.read_task,
    "mmeb-visdoc": beir_parquet.read_documents,
    "acm": acm.read_task,
    "beir-parquet": beir_parquet.read_task,
    "covr": covr.read_task,
}
PACKAGE = Path(__file__).parent.parent


def load_suite(name: str | Path) -> Suite:
    """A shipped suite by name, a folder of own data, or a card file; UserError says what there is."""
    path = Path(name)
    if path.is_dir() and folder.is_suite_folder(path):
        return folder.folder_suite(path)
    if path.suffix == ".toml" and path.is_file():
        return read_card(path)
    if len(path.parts) > 1 or (path.is_dir() and path.name not in shipped_cards()):
        return folder.folder_suite(path)
    return read_card(shipped_card(str(name)))


def choose_tasks(suite: Suite, globs: Sequence[str]) -> list[Task]:
    """The suite's tasks that match any of the globs; UserError if one matches none."""
    if not globs:
        return list(suite.tasks)
    names: set[str] = set()
    for glob in globs:
        found = fnmatch.filter(suite.task_names(), glob)
        if not found:
            raise UserError(
                f"--tasks {glob}: no task of {suite.name} matches; there are {', '.join(suite.task_names())}"
            )
        names.update(found)
    return [task for task in suite.tasks if task.name in names]


def data_root(suite: Suite, data: Path | None) -> Path:
    """Where the suite's data lies: the given folder, else the one that the suite brings."""
    if data is not None:
        if not data.is_dir():
            raise UserError(f"{data}: there is no such folder; --data names the folder with the data of {suite.name}")
        return data
    if suite.root is None:
        raise UserError(f"the data of {suite.name} does not come with the package: name its folder with --data")
    return PACKAGE / suite.root


def read_task(root: Path, task: Task) -> TaskData:
    """The rows of a task, checked; UserError names what is wrong and where."""
    layout = task.data.get("layout", "folder")
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise UserError(f"task {task.name}: unknown layout {layout!r}; there are {', '.join(sorted(LAYOUTS))}")
    return checked(LAYOUTS[layout](root, task), task)


def _place(task: Task, key: str) -> str:
    if task.data.get("layout", "folder") != "folder":
        return f"task {task.name}"
    files = {**folder.DEFAULT_FILES, **task.data}.get(key, [])
    return ": ".join([f"task {task.name}", ", ".join([files] if isinstance(files, str) else files)]).removesuffix(": ")


def checked(data: TaskData, task: Task) -> TaskData:
    """Refuse what would make a number wrong, and drop unjudged queries where the card allows it."""
    check_grades(data.judgments, task.all_measures(), f"task {task.name}")
    judged = check_ids(
        Ids(data.queries),
        Ids(data.candidates),
        data.judgments,
        data.pools,
        data.exclude,
        unjudged=task.unjudged,
        places=Places(*(_place(task, key) for key in ("queries", "candidates", "qrels", "pools"))),
    )
    if len(judged) == len(data.queries):
        return data
    return replace(data, queries=[data.queries[row] for row in judged], unjudged=len(data.queries) - len(judged))
