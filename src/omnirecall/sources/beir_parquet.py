"""BEIR tables as parquet: configs ``corpus``, ``queries`` and ``qrels``, or one table whose rows are pairs.

Media are the cells of columns ``image``, ``audio`` and ``video``. MMEB-V2's document tasks have the same form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from omnirecall.errors import UserError
from omnirecall.protocol.items import MEDIA, MODALITIES, TOKENS, Item, TaskData
from omnirecall.protocol.suites import Task
from omnirecall.sources.mmeb import spoken
from omnirecall.sources.tables import (
    NoDataError,
    hub,
    key,
    rows_folder,
    split_of,
    table_columns,
    table_files,
    table_rows,
    with_medium,
)

IDS = {"queries": ("id", "_id", "query-id", "query_id"), "corpus": ("id", "_id", "corpus-id", "corpus_id")}
TEXTS = {"queries": ("text", "query"), "corpus": ("text",)}
CONFIGS = {"queries": ("queries", "query"), "corpus": ("corpus",), "qrels": ("qrels", "default", "")}
"""Names of the configs; the first is the usual one."""
LETTERS = {part[0].upper(): part for part in MODALITIES}


def read_task(root: Path, task: Task) -> TaskData:
    """The rows of a task; those without anything to embed are left out and counted, with their judgments."""
    folder = rows_folder(root, task)
    if task.data.get("pairs"):
        return _pairs(folder, task)
    queries = list(_items(folder, "queries", task))
    corpus = list(_items(folder, "corpus", task))
    empty = {item.id for item in (*queries, *corpus) if not item.modalities}
    judgments: dict[str, dict[str, float]] = {}
    for row in table_rows(_files(folder, "qrels", task), ("query-id", "corpus-id", "score")):
        query, candidate, grade = str(row["query-id"]), str(row["corpus-id"]), float(row["score"])
        if grade > 0 and not {query, candidate} & empty:
            grades = judgments.setdefault(query, {})
            grades[candidate] = max(grade, grades.get(candidate, 0))
    if (language := task.data.get("language")) is not None:
        queries = [item for item in queries if item.cluster == language]
    return TaskData(
        queries=[item for item in queries if item.modalities],
        candidates=[item for item in corpus if item.modalities],
        judgments=judgments,
        defects={"empty-text": len(empty)} if empty else {},
    )


def read_documents(root: Path, task: Task) -> TaskData:
    """MMEB-V2's document tasks: the same tables, with the texts of vidore_dataset.py and visrag_dataset.py."""
    data = read_task(root, task)

    def said(item: Item, instruction: str, medium: str = "") -> Item:
        literal = spoken(instruction, item.text or "", medium)
        return Item(item.id, item.text, item.image, literal=literal)

    return TaskData(
        queries=[said(item, task.instruction) for item in data.queries],
        candidates=[said(item, task.candidate_instruction, TOKENS["image"]) for item in data.candidates],
        judgments=data.judgments,
        defects=data.defects,
    )


def _files(folder: Path, role: str, task: Task) -> list[Path]:
    for config in CONFIGS[role][1:]:
        with suppress(NoDataError):
            return table_files(folder, config, split_of(task), task)
    return table_files(folder, CONFIGS[role][0], split_of(task), task)


def _parts(task: Task, role: str) -> set[str]:
    """The parts that the direction gives an item of this role, or all."""
    sides = [side.split("->") for side in task.direction.split(", ") if "->" in side]
    letters = {letter for side in sides for letter in side[0 if role == "queries" else 1].replace("/", ",").split(",")}
    return {LETTERS[letter.strip()] for letter in letters if letter.strip() in LETTERS} or set(MODALITIES)


def _items(folder: Path, role: str, task: Task) -> Iterator[Item]:
    files = _files(folder, role, task)
    there = table_columns(files)
    name = next((column for column in IDS[role] if column in there), None)
    text = next((column for column in TEXTS[role] if column in there), None)
    if name is None:
        raise UserError(
            f"{files[0]}: no column of ids, which is called {' or '.join(IDS[role])}; it has {', '.join(there)}"
        )
    parts = _parts(task, role)
    media = [part for part in MEDIA if part in there and part in parts]
    words = [column for column in ("title", text) if column in there and "text" in parts]
    beside = [column for column in ("language", "instruction") if column in there]
    for row in table_rows(files, [name, *words, *media, *beside]):
        said = " ".join(row[column] for column in words if row[column])
        cells: dict[str, Any] = {part: medium(row[part], files[0]) for part in media}
        yield Item(
            str(row[name]),
            text=said.strip() or None,
            instruction=row.get("instruction"),
            cluster=row.get("language") if task.data.get("language") else None,
            **cells,
        )


def medium(cell: Any, file: Path) -> Any:
    """A cell's medium: its place if the bytes are in the table, else a path beside the table."""
    return file.parent / cell if isinstance(cell, str) else cell


def _pairs(folder: Path, task: Task) -> TaskData:
    """A table whose rows pair a query with its only relevant candidate; ids are row numbers, as in mteb."""
    files = table_files(folder, hub(task, "config"), split_of(task), task)
    columns = key(task, "queries"), key(task, "candidates")
    parts = [min(_parts(task, role)) for role in ("queries", "corpus")]
    queries, candidates, empty = [], [], 0
    for number, row in enumerate(table_rows(files, columns)):
        query, candidate = (
            _one(number, row, part, column, files[0]) for part, column in zip(parts, columns, strict=True)
        )
        if query.modalities and candidate.modalities:
            queries.append(query)
            candidates.append(candidate)
        else:
            empty += 1
    return TaskData(
        queries=queries,
        candidates=candidates,
        judgments={item.id: {item.id: 1.0} for item in queries},
        defects={"empty-text": empty} if empty else {},
    )


def _one(number: int, row: Mapping[str, Any], part: str, column: str, file: Path) -> Item:
    cell = row[column]
    if part == "text":
        words = cell if isinstance(cell, str) else (cell or [""])[0]
        return Item(str(number), text=words.strip() or None)
    return with_medium(Item(str(number)), part, medium(cell, file))
