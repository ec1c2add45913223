"""The layout of ACM: four parquet configs, and the media folders of its archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item, MediaRef, Packed, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.tables import (
    first_folder,
    key,
    media_root,
    split_of,
    table_columns,
    table_files,
    table_rows,
    under,
    with_medium,
)

FOLDERS = {"audio": ("audios", ".wav"), "video": ("videos", ".mp4"), "image": ("images", ".jpg")}
IDS = ("id", "audio_id", "video_id", "image_id", "sample_id", "pair_id", "youtube_id")


def read_task(root: Path, task: Task) -> TaskData:
    """The rows of one direction. In the audio-visual ones a query is one part of a clip and its answer another part of it."""
    folder = first_folder([media_root(root, task)], task)
    media = first_folder([folder / key(task, "media", "media")], task)
    split = split_of(task)
    tables = {role: table_files(folder, key(task, role), split, task) for role in ("queries", "candidates")}
    wanted = key(task, "to")
    rows = _rows(tables["candidates"])
    candidates = [
        with_medium(Item(name), wanted, _medium(row, wanted, name, media, place)) for name, row, place in rows
    ]
    clips = {name: row for name, row, _ in rows}
    queries, judgments = [], {}
    shown = key(task, "from").split("+")
    if "text" in shown:
        columns = ("sample_id", "modified_text", "src_audio_path", "tgt_audio_id")
        for row in table_rows(tables["queries"], columns):
            name, source = str(row["sample_id"]), str(row["src_audio_path"])
            place = f"{tables['queries'][0]}: item {name}"
            queries.append(
                Item(
                    name,
                    row["modified_text"],
                    audio=_path(source, media, place),
                    cluster=f"{task.dataset}/{Path(source).stem}",
                )
            )
            judgments[name] = {str(row["tgt_audio_id"]): 1.0}
    else:
        for name, own, place in _rows(tables["queries"]):
            clip = {**clips.get(name, {}), **own}
            ref = _medium(clip, shown[0], name, media, place)
            queries.append(with_medium(Item(name, cluster=f"{task.dataset}/{name}"), shown[0], ref))
            judgments[name] = {name: 1.0}
    return TaskData(queries=queries, candidates=candidates, judgments=judgments)


def _rows(files: Sequence[Path]) -> list[tuple[str, Mapping[str, Any], str]]:
    """Id, row and place of each row of a table."""
    there = table_columns(files)
    name = next((column for column in IDS if column in there), None)
    if name is None:
        raise UserError(f"{files[0]}: no column of ids, which is called {' or '.join(IDS)}; it has {', '.join(there)}")
    return [(str(row[name]), row, f"{files[0]}: item {row[name]}") for row in table_rows(files, there)]


def _medium(row: Mapping[str, Any], part: str, name: str, media: Path, place: str) -> MediaRef:
    """A row's sound, video or image: in the table, at its path, or by its id in the folder of its kind."""
    for column in (part, f"{part}_path"):
        cell = row.get(column)
        if isinstance(cell, Packed):
            return cell
        if isinstance(cell, str) and cell:
            return _path(cell, media, place)
    folder, suffix = FOLDERS[part]
    return under(media, f"{folder}/{name}{suffix}", place)


def _path(name: str, media: Path, place: str) -> Path:
    return under(media, name.removeprefix(f"{media.name}/"), place)
