"""The folder layout: own data, and the starter suite.

A folder holds ``task.toml``, ``queries.jsonl``, ``candidates.jsonl`` and ``qrels.tsv`` (one task), or a card ``suite.toml`` whose
tasks name their files. Each jsonl line is an item: ``id`` and any of ``text``, ``image``, ``video``, ``audio``; media are paths
relative to the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from omnirecall import columns
from omnirecall.errors import UserError
from omnirecall.protocol.cards import read_card, read_toml, suite_from_table
from omnirecall.protocol.items import Item, TaskData
from omnirecall.protocol.suites import Suite, Task
from omnirecall.sources.jsonl_items import JsonlItems
from omnirecall.sources.qrels import numbered_lines, read_pools, read_qrels

DEFAULT_FILES = {"queries": "queries.jsonl", "candidates": "candidates.jsonl", "qrels": "qrels.tsv"}
ITEM_FILES = ("queries", "candidates")
MEDIA = ("image", "video", "audio")
KEPT = 20_000
"""Up to so many items of a file are kept in memory."""


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    text: str | None = None
    image: str | None = None
    video: str | None = None
    audio: str | None = None
    instruction: str | None = None
    cluster: str | None = None
    metadata: Any = None


class _Role(msgspec.Struct, forbid_unknown_fields=True):
    file: str | None = None
    instruction: str | None = None


def is_suite_folder(folder: Path) -> bool:
    """Whether the folder describes itself as a task or a suite."""
    return (folder / "task.toml").is_file() or (folder / "suite.toml").is_file()


def folder_suite(folder: Path) -> Suite:
    """The suite of an own-data folder: its ``suite.toml``, or one task from its ``task.toml``."""
    if (folder / "suite.toml").is_file():
        return msgspec.structs.replace(read_card(folder / "suite.toml"), root=str(folder.resolve()))
    path = folder / "task.toml"
    if not path.is_file():
        raise UserError(
            f"{folder}: there is neither task.toml nor suite.toml; see `omnirecall run --help` for the layout"
        )
    task = read_toml(path)
    if isinstance(task.get("task"), Mapping):
        own = task.pop("task")
        task = {**task, **own}
    task = _with_roles(task, path)
    task.setdefault("name", folder.resolve().name)
    task.setdefault("measure", "hit@1")
    task.setdefault("measures", ["hit@1", "hit@5", "recall@5", "ndcg@10", "mrr"])
    table = {"suite": {"name": task["name"]}, "task": [task]}
    return msgspec.structs.replace(
        suite_from_table(table, path, hashlib.sha256(path.read_bytes()).hexdigest()), root=str(folder.resolve())
    )


def _with_roles(task: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Spread ``[roles.query]`` and ``[roles.candidate]`` (``file``, ``instruction``) over the task's own keys."""
    task = dict(task)
    try:
        roles = msgspec.convert(task.pop("roles", {}), dict[str, _Role])
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: roles: {error}; a role has `file` and `instruction`") from None
    if unknown := set(roles) - {"query", "candidate"}:
        raise UserError(f"{path}: roles: unknown role {sorted(unknown)[0]}; the roles are query and candidate")
    data = task.get("data", {})
    if not isinstance(data, Mapping):
        raise UserError(f'{path}: data must be a table of files, such as [data] queries = "queries.jsonl"')
    data = dict(data)
    for role, files_key, instruction_key in (
        ("query", "queries", "instruction"),
        ("candidate", "candidates", "candidate_instruction"),
    ):
        if role in roles:
            if roles[role].file is not None:
                data[files_key] = roles[role].file
            if roles[role].instruction is not None:
                task[instruction_key] = roles[role].instruction
    return {**task, "data": data}


def read_task(root: Path, task: Task) -> TaskData:
    """Queries, candidates, judgments, pools and exclusions of one task under ``root``.

    ``task.data`` may name files: ``queries`` and ``candidates`` (one or a list), ``qrels``, ``pools``.
    UserError names file and line.
    """
    files = {**DEFAULT_FILES, **{key: value for key, value in task.data.items() if key != "layout"}}
    if unknown := set(files) - {*DEFAULT_FILES, "pools"}:
        raise UserError(
            f"task {task.name}: data has an unknown key {sorted(unknown)[0]}; it has queries, candidates, qrels, pools"
        )
    for key, names in files.items():
        if not isinstance(names, str) and not (key in ITEM_FILES and _are_names(names)):
            raise UserError(
                f"task {task.name}: data.{key} is {names!r}; give a file name"
                + (" or a list of file names" if key in ITEM_FILES else "")
            )
    pools, exclude = read_pools(inside(root, files["pools"], f"task {task.name}")) if "pools" in files else (None, {})
    return TaskData(
        queries=_read_tables(root, files["queries"], task.name),
        candidates=_read_tables(root, files["candidates"], task.name),
        judgments=read_qrels(inside(root, files["qrels"], f"task {task.name}")),
        pools=pools,
        exclude=exclude,
    )


def _are_names(names: object) -> bool:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


def _read_tables(root: Path, names: str | list[str], task: str) -> Sequence[Item]:
    tables = [
        read_items(inside(root, name, f"task {task}"), root) for name in ([names] if isinstance(names, str) else names)
    ]
    return tables[0] if len(tables) == 1 else [item for table in tables for item in table]


def read_items(path: Path, root: Path) -> Sequence[Item]:
    """The items of a jsonl file, which stay there if they are many; media paths are resolved under ``root``.

    UserError names file, line and id.
    """
    hashes = columns.Hashes()

    def look(number: int, row: _Row) -> None:
        if not row.id.strip():
            raise UserError(f"{path}: line {number}: the id is empty; give each item one")
        hashes.add(row.id)
        if row.image or row.video or row.audio:
            for part in MEDIA:
                if name := getattr(row, part):
                    _check_file(root, name, f"{path}: line {number}: item {row.id}: {part}")
        elif text(row) is None:
            raise UserError(
                f"{path}: line {number}: item {row.id}: none of text, image, video, audio; give at least one"
            )

    def make(row: _Row) -> Item:
        return Item(row.id, text(row), at(row.image), at(row.video), at(row.audio), row.instruction, row.cluster)

    def at(name: str | None) -> Path | None:
        return root / name if name else None

    def text(row: _Row) -> str | None:
        return row.text if row.text and not row.text.isspace() else None

    try:
        items = JsonlItems(path, _Row, make, look, _complaint)
    finally:
        _refuse_repeats(path, hashes)
    return items if len(items) > KEPT else list(items)


def _complaint(path: Path, number: int, error: Exception) -> UserError:
    return UserError(f"{path}: line {number}: {error}")


def _refuse_repeats(path: Path, hashes: columns.Hashes) -> None:
    """UserError naming an id that is used again, and both lines."""
    again = hashes.repeated()
    lines: dict[str, int] = {}
    for number, line in numbered_lines(path) if again else ():
        name = msgspec.json.decode(line, type=_Row).id
        if hash(name) in again:
            if name in lines:
                raise UserError(f"{path}: line {number}: the id {name} was used in line {lines[name]}; ids are unique")
            lines[name] = number


def inside(root: Path, name: str, place: str) -> Path:
    """``root / name``, refused unless it stays inside ``root`` (symbolic links followed)."""
    try:
        within = "\x00" not in name and (root / name).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError before Python 3.13
        raise UserError(f"{place}: {name!r} cannot be followed: {getattr(error, 'strerror', error)}") from None
    if not within:
        raise UserError(f"{place}: {name!r} leads outside {root}; paths are relative to the folder")
    return root / name


def _check_file(root: Path, name: str, place: str) -> None:
    path = inside(root, name, place)
    try:
        size = path.stat().st_size if path.is_file() else -1
    except OSError as error:
        raise UserError(f"{place}: {name}: {error.strerror}") from None
    if size < 0:
        raise UserError(f"{place}: there is no file {name} in {root}")
    if size == 0:
        raise UserError(f"{place}: the file {name} is empty")
