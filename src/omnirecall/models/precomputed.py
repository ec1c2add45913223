"""Vectors that are computed already: ``vectors:PATH``, found by task, role and id.

PATH is a folder or one file. In a folder the vector of an item is in the first of these files that is there:
    ``TASK/queries`` or ``TASK/candidates``, by role; ``TASK/items``; ``queries`` or ``candidates``; ``items``
each with one of these endings:
    ``.npy``: a matrix, with the ids in a file of the same name ending in ``.txt``, one a line;
    ``.npz``: arrays ``ids`` and ``vectors``;
    ``.safetensors``: a tensor ``vectors``, with the ids in ``.txt`` as for .npy;
    ``.parquet``: columns ``id`` and ``vector``, and ``task`` and ``role`` (``query``, ``candidate``) where a file holds several.
One file serves as ``items``. TASK is the task's name, any character but letters, digits and ``_.+=-`` written as ``_``.

Late interaction: .npz and .safetensors add ``offsets`` (items + 1 whole numbers from 0; item i owns the rows
``offsets[i]:offsets[i + 1]`` of ``vectors``); in parquet ``vector`` is a list of vectors.

.npy and .safetensors are mapped; .npz and .parquet are read into memory when first needed. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from omnirecall.digests import file_digest
from omnirecall.errors import UserError
from omnirecall.models.base import ModelOptions, Role
from omnirecall.models.checkpoint import folder_digest
from omnirecall.protocol.items import MODALITIES
from omnirecall.ranking import BFloat16, Ragged
from omnirecall.sources.vectors import read_ids, read_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnirecall.media.types import DecodedItem

    Values = NDArray[np.floating] | BFloat16

ROLES = {"query": "queries", "candidate": "candidates"}
STEMS = (*ROLES.values(), "items")
ENDINGS = (".npy", ".npz", ".safetensors", ".parquet")
FLOATS = ("float16", "float32", "float64", "bfloat16")
TENSORS = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2", "I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a file holds, known from its head: all files of a model agree in it."""

    dimension: int
    dtype: str
    late_interaction: bool

    def __str__(self) -> str:
        what = "lists of vectors" if self.late_interaction else "vectors"
        return f"{what} of {self.dimension} dimensions in {self.dtype}"


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """A file's vectors: bfloat16 as its bits. ``rows``: (task, role), "" for any, to id to place in the file."""

    path: Path
    vectors: NDArray[Any]
    offsets: NDArray[np.int64] | None
    rows: Mapping[tuple[str, str], Mapping[str, int]]

    def row(self, task: str, role: str, name: str) -> int | None:
        """The place of an item, or None."""
        for key in ((task, role), (task, ""), ("", role), ("", "")):
            if key in self.rows:
                return self.rows[key].get(name)
        return None


@dataclass(eq=False)
class Precomputed:
    """Vectors from files, an ``Embedder`` that asks for items by task, role and id: ``by_id``."""

    path: Path
    name: str
    fingerprint: str
    shape: Shape
    files: Mapping[str, Path]
    tables: dict[Path, Table] = field(default_factory=dict)
    by_id: bool = True
    symmetric: bool = False
    sampling_rate: int = 16000
    default_prompt: str = "none"
    media_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ("vectors were computed elsewhere; with which prompt and media policy is not known here",)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.shape.dimension

    @property
    def late_interaction(self) -> bool:
        """Whether the files hold lists of vectors."""
        return self.shape.late_interaction

    def supports(self, modalities: Set[str]) -> bool:
        """Every combination: what is missing is missing by id."""
        return bool(modalities) and modalities <= set(MODALITIES)

    def encode(self, items: Sequence[DecodedItem], *, role: Role) -> NDArray[np.floating] | BFloat16 | Ragged:
        """The stored vectors, shape (len(items), dimension) in the files' dtype, or ``Ragged``; UserError names missing ids."""
        places: dict[Path, list[tuple[int, int]]] = {}
        missing: dict[Path, list[DecodedItem]] = {}
        for position, item in enumerate(items):
            table = self._table(item.task, role)
            row = table.row(item.task, role, item.id)
            if row is None:
                missing.setdefault(table.path, []).append(item)
            else:
                places.setdefault(table.path, []).append((position, row))
        for path, lost in missing.items():
            raise UserError(_missing(path, lost, role))
        pieces: list[NDArray[Any]] = [np.empty(0)] * len(items)
        for path, found in places.items():
            for position, vectors in self._gathered(self.tables[path], found):
                pieces[position] = vectors
        if not self.late_interaction:
            return self._typed(np.stack(pieces))
        offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
        return Ragged(self._typed(np.concatenate(pieces)), offsets)

    def _gathered(self, table: Table, found: Sequence[tuple[int, int]]) -> Iterator[tuple[int, NDArray[Any]]]:
        for position, row in found:
            if table.offsets is None:
                yield position, table.vectors[row]
            else:
                yield position, table.vectors[table.offsets[row] : table.offsets[row + 1]]

    def _typed(self, values: NDArray[Any]) -> Values:
        return BFloat16(values) if self.shape.dtype == "bfloat16" else values

    def _table(self, task: str, role: Role) -> Table:
        path = self._file(task, role)
        if path not in self.tables:
            self.tables[path] = read_table(path)
        return self.tables[path]

    def _file(self, task: str, role: Role) -> Path:
        """The first file that may hold the items of a role of a task."""
        folder = folder_of(task)
        tried = [f"{folder}/{ROLES[role]}", f"{folder}/items"] if task else []
        tried += [ROLES[role], "items"]
        for stem in tried:
            if stem in self.files:
                return self.files[stem]
        raise UserError(
            f"vectors:{self.path}: has no {ROLES[role]} of task {task or 'without a name'}: give one of {', '.join(tried)},"
            f" ending in one of {', '.join(ENDINGS)}"
        )


def load(name: str, options: ModelOptions) -> Precomputed:
    """``vectors:PATH``; UserError for files that are missing, unreadable, or unlike each other."""
    options.only("vectors", "name")
    path = Path(name).expanduser()
    if not name or not path.exists():
        raise UserError(f"vectors:{name}: there is no such folder or file")
    files = _files(path)
    shapes = {file: read_shape(file) for file in files.values()}
    first, shape = next(iter(shapes.items()))
    for file, other in shapes.items():
        if other != shape:
            raise UserError(
                f"{file}: holds {other}, but {first} holds {shape}; all files of a model agree in dimension and dtype"
            )
    called = options.args.get("name") or (path.resolve().name if path.is_dir() else path.stem)
    digest = folder_digest(path) if path.is_dir() else "".join(file_digest(part) for part in _parts(path))
    identity = hashlib.blake2b(f"vectors-1 {digest}".encode(), digest_size=16).hexdigest()
    return Precomputed(path, called, identity, shape, files)


def folder_of(task: str) -> str:
    """The name of a task's folder."""
    return re.sub(r"[^\w.+=-]", "_", task)


def _parts(path: Path) -> list[Path]:
    return [path] if path.suffix in (".npz", ".parquet") else [path, path.with_suffix(".txt")]


def _files(path: Path) -> dict[str, Path]:
    """``TASK/STEM`` or ``STEM`` to the file."""
    if path.is_file():
        if path.suffix not in ENDINGS:
            raise UserError(f"vectors:{path}: ends in none of {', '.join(ENDINGS)}")
        return {"items": path}
    found: dict[str, Path] = {}
    for file in sorted([*path.glob("*.*"), *path.glob("*/*.*")]):
        if file.suffix not in ENDINGS or file.name.startswith("."):
            continue
        if file.stem not in STEMS:
            raise UserError(
                f"{file}: is named neither {', '.join(STEMS[:-1])} nor {STEMS[-1]}, and nothing would read it"
            )
        key = file.relative_to(path).with_suffix("").as_posix()
        if key in found:
            raise UserError(f"{file}: stands beside {found[key].name}; keep one of them")
        found[key] = file
    if not found:
        raise UserError(
            f"vectors:{path}: holds no vectors; give TASK/queries and TASK/candidates, with one of the endings"
            f" {', '.join(ENDINGS)}"
        )
    return found


def _missing(path: Path, lost: Sequence[DecodedItem], role: Role) -> str:
    some = ", ".join(item.id for item in lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
    task = f" of task {lost[0].task}" if lost[0].task else ""
    return f"{path}: has no vector for {ROLES[role]}{task}: {some}; add them"


def read_shape(path: Path) -> Shape:
    """What a file holds, from its head alone."""
    if path.suffix == ".parquet":
        return _parquet_shape(path)
    if path.suffix == ".npz":
        return _npz_shape(path)
    vectors, bfloat16, offsets = _mapped(path)
    return _shape(path, vectors.shape, "bfloat16" if bfloat16 else vectors.dtype.name, offsets is not None)


def read_table(path: Path) -> Table:
    """A file's vectors and ids; UserError for ids that stand twice and for offsets that do not fit."""
    if path.suffix == ".parquet":
        return _parquet_table(path)
    if path.suffix == ".npz":
        ids, vectors, offsets = _npz_arrays(path)
    else:
        vectors, _, offsets = _mapped(path)
        count = len(vectors) if offsets is None else len(offsets) - 1
        ids = read_ids(path.with_suffix(".txt"), count, path)
    checked = None if offsets is None else _checked_offsets(path, offsets, ids, len(vectors))
    if checked is None and len(ids) != len(vectors):
        raise UserError(f"{path}: {len(ids)} ids for {len(vectors)} vectors; there is one id a vector")
    return Table(path, vectors, checked, {("", ""): _rows(path, ids)})


def _shape(path: Path, shape: Sequence[int], dtype: str, late_interaction: bool) -> Shape:
    if len(shape) != 2 or 0 in shape:
        raise UserError(f"{path}: vectors have the shape {tuple(shape)}; (rows, dimension) is expected, none of them 0")
    if dtype not in FLOATS:
        raise UserError(f"{path}: vectors are {dtype}; {', '.join(FLOATS)} are possible")
    return Shape(int(shape[1]), dtype, late_interaction)


def _rows(path: Path, ids: Sequence[str], places: Sequence[int] | None = None) -> dict[str, int]:
    rows: dict[str, int] = {}
    for place, name in zip(places or range(len(ids)), ids, strict=True):
        if name in rows:
            raise UserError(f"{path}: the id {name} stands twice, in rows {rows[name]} and {place}; ids are unique")
        rows[name] = place
    return rows


def _checked_offsets(path: Path, offsets: NDArray[Any], ids: Sequence[str], count: int) -> NDArray[np.int64]:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) != len(ids) + 1:
        raise UserError(
            f"{path}: offsets are {offsets.dtype} of shape {offsets.shape}; {len(ids) + 1} whole numbers are expected"
        )
    offsets = offsets.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != count:
        raise UserError(
            f"{path}: offsets go from {offsets[0]} to {offsets[-1]}; from 0 to {count} is expected, the number of rows"
        )
    empty = np.flatnonzero(np.diff(offsets) <= 0)
    if len(empty):
        raise UserError(f"{path}: the id {ids[empty[0]]} has no vectors: its offsets do not rise")
    return offsets


def _mapped(path: Path) -> tuple[NDArray[Any], bool, NDArray[Any] | None]:
    """The vectors, whether they are the bits of bfloat16, and the offsets of .npy or .safetensors."""
    if path.suffix == ".npy":
        return read_vectors(path), False, None
    tensors = _safetensors(path)
    if "vectors" not in tensors:
        raise UserError(f"{path}: holds no tensor named vectors, but {', '.join(sorted(tensors)) or 'none'}")
    vectors, kind = tensors["vectors"]
    return vectors, kind == "BF16", tensors["offsets"][0] if "offsets" in tensors else None


def _safetensors(path: Path) -> dict[str, tuple[NDArray[Any], str]]:
    """The tensors that are floats or whole numbers, mapped, with their dtypes as the file says them.

    Format: 8 bytes little-endian for the length of a JSON header, the header, then the data that it points into.
    """
    found: dict[str, tuple[NDArray[Any], str]] = {}
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = msgspec.json.decode(file.read(length) if length <= size - 8 else b"")
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in TENSORS:
                continue
            shape, (begin, end) = [int(side) for side in entry["shape"]], entry["data_offsets"]
            dtype = np.dtype(TENSORS[entry["dtype"]])
            if not 0 <= begin < end <= size - 8 - length or prod(shape) * dtype.itemsize != end - begin:
                raise ValueError(name)
            mapped = np.memmap(path, dtype, "r", offset=8 + length + begin, shape=tuple(shape))
            found[name] = (mapped, entry["dtype"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, msgspec.DecodeError):
        raise UserError(f"{path}: not a whole .safetensors file") from None
    return found


def _npz_shape(path: Path) -> Shape:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("vectors.npy") as member:
            major, _ = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(member)
            late_interaction = "offsets.npy" in archive.namelist()
    except Exception:  # numpy parses the header as Python, and the archive is zipfile's: damage raises anything
        raise UserError(_no_npz(path)) from None
    return _shape(path, shape, dtype.name, late_interaction)


def _npz_arrays(path: Path) -> tuple[list[str], NDArray[Any], NDArray[Any] | None]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            ids, vectors = archive["ids"], archive["vectors"]
            offsets = archive["offsets"] if "offsets" in archive.files else None
    except Exception:  # as above
        raise UserError(_no_npz(path)) from None
    if ids.ndim != 1 or ids.dtype.kind not in "Uiu":
        raise UserError(f"{path}: ids are {ids.dtype} of shape {ids.shape}; a flat array of text is expected")
    return [str(name) for name in ids], vectors.astype(vectors.dtype.newbyteorder("="), copy=False), offsets


def _no_npz(path: Path) -> str:
    return (
        f"{path}: not a whole .npz file with arrays ids and vectors, of plain text and numbers; write it with"
        " numpy.savez(path, ids=numpy.array(ids, dtype=str), vectors=vectors)"
    )


def _opened(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (OSError, pa.ArrowException):
        raise UserError(f"{path}: not a whole .parquet file") from None
    if lacking := {"id", "vector"} - set(file.schema_arrow.names):
        raise UserError(f"{path}: has no column {' and '.join(sorted(lacking))}")
    return file


def _parquet_shape(path: Path) -> Shape:
    import pyarrow as pa

    file = _opened(path)
    kind, depth, dimension = file.schema_arrow.field("vector").type, 0, None
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        dimension = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        kind, depth = kind.value_type, depth + 1
    dtype = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))
    if depth not in (1, 2):
        raise UserError(
            f"{path}: the column vector is {file.schema_arrow.field('vector').type}; lists of floats are expected"
        )
    if dimension is None and file.metadata.num_rows:
        (batch,) = next(file.iter_batches(1, columns=["vector"])).to_pydict().values()
        first = batch[0] if depth == 1 or not batch[0] else batch[0][0]
        dimension = len(first or [])
    return _shape(path, (file.metadata.num_rows, dimension or 0), dtype, depth == 2)


def _parquet_table(path: Path) -> Table:
    import pyarrow as pa

    shape, file = _parquet_shape(path), _opened(path)
    named = [column for column in ("task", "role") if column in file.schema_arrow.names]
    try:
        table = file.read(columns=["id", "vector", *named])
        texts = {column: table.column(column).cast(pa.string()).to_pylist() for column in ("id", *named)}
    except (OSError, pa.ArrowException):
        raise UserError(f"{path}: cannot be read to its end, or has columns other than text for ids") from None
    ids = texts["id"]
    for column, values in texts.items():
        if None in values:
            raise UserError(f"{path}: the {column} in row {values.index(None)} is empty")
    if wrong := sorted({*texts.get("role", ())} - set(ROLES)):
        raise UserError(f"{path}: the role {wrong[0]} is neither query nor candidate")
    chunks = [_flat(path, chunk, shape) for chunk in table.column("vector").chunks if len(chunk)]
    lengths = np.concatenate([lengths for lengths, _, _ in chunks])
    widths = np.concatenate([widths for _, widths, _ in chunks])
    owners = np.repeat(np.arange(len(ids)), lengths)
    if len(other := np.flatnonzero(widths != shape.dimension)):
        raise UserError(
            f"{path}: the vector of id {ids[owners[other[0]]]} has {widths[other[0]]} dimensions, others have {shape.dimension}"
        )
    vectors = np.concatenate([values for _, _, values in chunks]).reshape(-1, shape.dimension)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    checked = _checked_offsets(path, offsets, ids, len(vectors)) if shape.late_interaction else None
    groups: dict[tuple[str, str], list[int]] = {}
    tasks, roles = (texts.get(column) or [""] * len(ids) for column in ("task", "role"))
    for row, key in enumerate(zip(tasks, roles, strict=True)):
        groups.setdefault(key, []).append(row)
    return Table(
        path, vectors, checked, {key: _rows(path, [ids[row] for row in rows], rows) for key, rows in groups.items()}
    )


def _flat(path: Path, chunk: Any, shape: Shape) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    """Vectors of each item, numbers of each vector, and the numbers, of one piece of the column ``vector``."""
    if chunk.null_count:
        raise UserError(f"{path}: {chunk.null_count} rows have no vector; leave out such rows, or give their vectors")
    lengths = np.ones(len(chunk), np.int64)
    if shape.late_interaction:
        lengths, chunk = _lengths(chunk), chunk.flatten()
        if chunk.null_count:
            raise UserError(f"{path}: an item's list of vectors has an empty place")
    widths, numbers = _lengths(chunk), chunk.flatten()
    return lengths, widths, numbers.to_numpy(zero_copy_only=False)


def _lengths(chunk: Any) -> NDArray[np.int64]:
    from pyarrow import compute

    lengths: NDArray[np.int64] = compute.list_value_length(chunk).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths
