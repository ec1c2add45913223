"""The layout of UVRB: ``NAME/jsonl/{queries,corpus,instances}.jsonl``, videos and images beside them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item, MediaRef, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.tables import NoDataError, first_folder, jsonl_rows, key, media_root, needed_file, under

VIDEO_FOLDERS = ("videos", "video", ".")
IMAGE_FOLDERS = ("images", "image", ".")
Id = str | int


class _Query(msgspec.Struct):
    id: Id
    text: str | None = None
    video: str | None = None
    image: str | None = None


class _Video(msgspec.Struct):
    id: Id
    video: str


class _Instance(msgspec.Struct):
    qid: Id
    pos: list[Id]
    neg: list[Id] = []


def read_task(root: Path, task: Task) -> TaskData:
    """The rows of one of the sixteen data sets. Rows of ``instances`` with one query are merged.

    Where the card wants a pool per query, it is the query's positives and negatives; a query without negatives leaves no data.
    """
    name = key(task, "name")
    home = media_root(root, task) / name
    folder = first_folder((home, home / "UVRB" / name), task)
    if not (folder / "jsonl").is_dir():
        folder = first_folder((folder / "UVRB" / name, folder), task)
    queries, corpus, instances = (
        needed_file(folder / "jsonl" / f"{part}.jsonl", task) for part in ("queries", "corpus", "instances")
    )
    relevant: dict[str, dict[str, float]] = {}
    pools: dict[str, dict[str, None]] = {}
    for number, row in jsonl_rows(instances, _Instance):
        if not row.pos:
            raise UserError(f"{instances}: line {number}: query {row.qid} has no `pos`; a query has a relevant video")
        relevant.setdefault(str(row.qid), {}).update((str(name), 1.0) for name in row.pos)
        pools.setdefault(str(row.qid), {}).update((str(name), None) for name in [*row.pos, *row.neg])
    candidates = []
    videos: dict[str, str] = {}
    for number, clip in jsonl_rows(corpus, _Video):
        place = f"{corpus}: line {number}: item {clip.id}"
        candidates.append(Item(str(clip.id), video=_medium(folder, VIDEO_FOLDERS, clip.video, place)))
        videos[str(clip.id)] = clip.video
    if task.pool == "per-query":
        _refuse_without_negatives(relevant, pools, instances, task)
    items = []
    for number, query in jsonl_rows(queries, _Query):
        place = f"{queries}: line {number}: item {query.id}"
        source = videos.get(next(iter(relevant.get(str(query.id), {})), ""))
        items.append(
            Item(
                str(query.id),
                text=query.text or None,
                video=_medium(folder, VIDEO_FOLDERS, query.video, place) if query.video else None,
                image=_medium(folder, IMAGE_FOLDERS, query.image, place) if query.image else None,
                cluster=f"{task.dataset}/{source}" if source else None,
            )
        )
        if not items[-1].modalities:
            raise UserError(f"{place}: none of text, video, image; the file is damaged: fetch it again")
    return TaskData(
        queries=items,
        candidates=candidates,
        judgments=relevant,
        pools={query: list(ids) for query, ids in pools.items()} if task.pool == "per-query" else None,
    )


def _medium(folder: Path, places: tuple[str, ...], name: str, place: str) -> MediaRef:
    """The file of that name in the first of the folders that is there."""
    base = next((folder / each for each in places if (folder / each).is_dir()), folder)
    stem = name.removeprefix(f"{base.name}/")
    return under(base, stem, place)


def _refuse_without_negatives(
    relevant: dict[str, dict[str, float]], pools: dict[str, dict[str, None]], path: Path, task: Task
) -> None:
    for query, pool in pools.items():
        if len(pool) == len(relevant[query]):
            raise NoDataError(
                f"{path}: query {query} has no `neg` list, and the pools of {task.name} are a query's positives and negatives;"
                f" a pool of all clips would be another task"
            )
