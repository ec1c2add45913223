"""The layout of WebVid-CoVR: a csv of triplets, and videos by ``folder/name``."""

from __future__ import annotations

import csv
from pathlib import Path

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.tables import first_folder, key, media_root, needed_file, under

COLUMNS = ("pth1", "pth2", "edit")


def read_task(root: Path, task: Task) -> TaskData:
    """Queries are a reference video and an edit, the pool all targets; ``own_source = "exclude"`` masks a query's reference."""
    folder = media_root(root, task)
    annotations = needed_file(folder / key(task, "annotations"), task)
    videos = first_folder([folder / key(task, "videos")], task)
    queries: list[Item] = []
    targets: dict[str, Item] = {}
    judgments: dict[str, dict[str, float]] = {}
    sources: dict[str, str] = {}
    with annotations.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if missing := [column for column in COLUMNS if column not in (lines.fieldnames or ())]:
            raise UserError(f"{annotations}: no column {missing[0]}; it has {', '.join(lines.fieldnames or ())}")
        for row in lines:
            place = f"{annotations}: line {lines.line_num}"
            if any(not row[column] for column in COLUMNS):
                raise UserError(
                    f"{place}: a cell of {', '.join(COLUMNS)} is empty; the file is cut short: fetch it again"
                )
            name, source, target = str(len(queries)), row["pth1"], row["pth2"]
            video = under(videos, f"{source}.mp4", place)
            queries.append(Item(name, row["edit"], video=video, cluster=f"{task.dataset}/{source}"))
            targets.setdefault(target, Item(target, video=under(videos, f"{target}.mp4", place)))
            judgments[name], sources[name] = {target: 1.0}, source
    if not queries:
        raise UserError(f"{annotations}: the file has no rows; fetch it again")
    masked = {name: [source] for name, source in sources.items() if source in targets and source not in judgments[name]}
    return TaskData(
        queries=queries,
        candidates=list(targets.values()),
        judgments=judgments,
        exclude=masked if task.own_source == "exclude" else {},
    )
