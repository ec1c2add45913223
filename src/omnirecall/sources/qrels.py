"""Judgment and pool files: TREC qrels, M-BEIR's five columns, BEIR's tsv, and jsonl pools."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from omnirecall.errors import UserError

LARGEST_GRADE = 1e9
"""Far above any scale in use, and small enough that sums of gains stay exact enough."""

BEIR_HEADER = ["query-id", "corpus-id", "score"]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1; UserError for a missing, empty or non-UTF-8 file."""
    for number, _, line in placed_lines(path):
        yield number, line


def placed_lines(path: Path) -> Iterator[tuple[int, int, str]]:
    """The same, with the place in the file where each line begins."""
    number, place, empty = 0, 0, True
    try:
        with path.open("rb") as file:
            for number, content in enumerate(file, 1):
                text = content.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    empty = False
                    yield number, place, text.rstrip("\r\n")
                place += len(content)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; name a file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: after line {number - 1}: not UTF-8 text") from None
    if empty:
        raise UserError(f"{path}: the file is empty")


def read_qrels(path: Path, columns: int = 0) -> dict[str, dict[str, float]]:
    """Query id to candidate id to grade.

    TREC (``query 0 candidate grade``), the same with a fifth column (M-BEIR's task id), or tab-separated with BEIR's header
    ``query-id corpus-id score``. ``columns`` is their number where the layout fixes it. UserError names the line.
    """
    judgments: dict[str, dict[str, float]] = {}
    beir = False
    for number, line in numbered_lines(path):
        fields = line.split("\t") if beir else line.split()
        if not columns:
            columns = len(fields)
            beir = [field.lower() for field in fields] == BEIR_HEADER
            if beir:
                continue
            if columns not in (4, 5):
                raise UserError(
                    f"{path}: line {number}: {columns} columns; qrels have 4 (`query 0 candidate grade`), 5 as M-BEIR has them, "
                    f"or 3 under the header `query-id<tab>corpus-id<tab>score`"
                )
        if len(fields) != columns:
            raise UserError(f"{path}: line {number}: {len(fields)} columns where {columns} are expected")
        query, candidate, grade_text = fields if beir else (fields[0], fields[2], fields[3])
        try:
            grade = float(grade_text)
        except ValueError:
            grade = math.nan
        if not math.isfinite(grade):
            raise UserError(f"{path}: line {number}: the grade {grade_text!r} is not a number")
        if abs(grade) > LARGEST_GRADE:
            raise UserError(
                f"{path}: line {number}: the grade {grade_text} is beyond {LARGEST_GRADE:g}; use smaller grades"
            )
        row = judgments.setdefault(query, {})
        if row.setdefault(candidate, grade) != grade:
            raise UserError(
                f"{path}: line {number}: query {query} and candidate {candidate} are judged twice, {row[candidate]:g} and {grade:g}"
            )
    if not judgments:
        raise UserError(f"{path}: there is a header and no judgment")
    return judgments


class _PoolRow(msgspec.Struct, rename={"query_id": "query-id"}, forbid_unknown_fields=True):
    query_id: str
    candidates: list[str] | None = None
    exclude: list[str] | None = None


def read_pools(path: Path) -> tuple[dict[str, list[str]] | None, dict[str, list[str]]]:
    """Per-query pools (None if the file names none) and exclusions, from jsonl.

    Lines are ``{"query-id": ..., "candidates": [...], "exclude": [...]}`` with either or both lists.
    """
    pools: dict[str, list[str]] = {}
    exclude: dict[str, list[str]] = {}
    decoder = msgspec.json.Decoder(_PoolRow)
    for number, line in numbered_lines(path):
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        for name, table, ids in (("candidates", pools, row.candidates), ("exclude", exclude, row.exclude)):
            if ids is None:
                continue
            if row.query_id in table:
                raise UserError(f"{path}: line {number}: a second `{name}` list for query {row.query_id}")
            table[row.query_id] = ids
        if row.candidates is None and row.exclude is None:
            raise UserError(f"{path}: line {number}: neither `candidates` nor `exclude`")
    return pools or None, exclude
