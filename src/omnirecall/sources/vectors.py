"""Vectors, ids and ranked lists that a user brings as files."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnirecall.errors import UserError
from omnirecall.sources.qrels import numbered_lines


def read_vectors(path: Path) -> NDArray[np.floating]:
    """A two-dimensional array of floats from .npy, mapped and not read if its bytes are in this machine's order.

    UserError for anything else.
    """
    try:
        vectors: NDArray[np.floating] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception:  # numpy parses the header as Python, and a zip archive by zipfile: damage raises anything
        raise UserError(f"{path}: not a whole .npy file of plain numbers; write it with numpy.save") from None
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or 0 in vectors.shape:
        shape = getattr(vectors, "shape", "an archive")
        raise UserError(f"{path}: holds {shape}; vectors have the shape (items, dimension), one row an item")
    if vectors.dtype.kind != "f" or vectors.dtype.itemsize > 8:
        raise UserError(f"{path}: holds {vectors.dtype}; vectors are float16, float32 or float64")
    native = vectors.dtype.newbyteorder("=")
    return vectors if vectors.dtype == native else vectors.astype(native)


def read_ids(path: Path | None, rows: int, vectors: Path) -> list[str]:
    """One id a line, as many as there are rows; row numbers if no file is named."""
    if path is None:
        return [str(row) for row in range(rows)]
    ids = [line.strip() for _, line in numbered_lines(path)]
    if len(ids) != rows:
        raise UserError(f"{path}: {len(ids)} ids for the {rows} rows of {vectors}; give one id a line")
    return ids


def refuse_unusable(vectors: NDArray[np.floating], ids: list[str], path: Path, *, zero_too: bool) -> None:
    """UserError naming the id of the first vector that is NaN, infinite or (under cosine) zero."""
    for start in range(0, len(vectors), 65536):
        block = np.asarray(vectors[start : start + 65536])
        checks = [("NaN", np.isnan(block).any(1)), ("infinite", np.isinf(block).any(1))]
        if zero_too:
            checks.append(("zero", ~block.any(1)))
        for what, wrong in checks:
            if wrong.any():
                row = start + int(wrong.argmax())
                raise UserError(f"{path}: row {row}, id {ids[row]}: the vector is {what}; nothing can be ranked by it")


def read_run_file(path: Path) -> dict[str, dict[str, float]]:
    """Query id to candidate id to score, from a TREC run: ``query Q0 candidate rank score tag``; a seventh column is left aside.

    Candidates stay in the file's order. UserError names the line.
    """
    run: dict[str, dict[str, float]] = {}
    for number, line in numbered_lines(path):
        fields = line.split()
        if len(fields) not in (6, 7):
            raise UserError(
                f"{path}: line {number}: {len(fields)} columns; a run has 6: `query Q0 candidate rank score tag`"
            )
        query, candidate = fields[0], fields[2]
        try:
            score = float(fields[4])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise UserError(f"{path}: line {number}: the score {fields[4]!r} is not a number")
        row = run.setdefault(query, {})
        if candidate in row:
            raise UserError(f"{path}: line {number}: candidate {candidate} stands twice in the list of query {query}")
        row[candidate] = score
    return run


def distinct(ids: list[str], path: Path | None) -> list[str]:
    """The ids, or UserError naming one that is used twice."""
    if len(set(ids)) < len(ids):
        name, count = Counter(ids).most_common(1)[0]
        raise UserError(f"{path}: the id {name} is used {count} times; ids are unique")
    return ids
