"""What the readers of the benchmarks' layouts share: finding folders, and rows of jsonl and parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from omnirecall.errors import UserError
from omnirecall.protocol.items import Item, Packed
from omnirecall.protocol.suites import Task
from omnirecall.sources.packed import not_whole, opened_parquet
from omnirecall.sources.qrels import numbered_lines

if TYPE_CHECKING:
    import pyarrow as pa

Row = TypeVar("Row")
BLOCK = 1024
"""Rows of a table read at a time."""


class NoDataError(UserError):
    """The data set does not give what the task needs: the task has no value, and the others go on."""


class MissingDataError(NoDataError):
    """A task's folder or files are not there."""


def key(task: Task, name: str, default: str | None = None) -> str:
    """A text value of the task's ``data``; UserError if it is missing or no text."""
    value = task.data.get(name, default)
    if not isinstance(value, str):
        raise UserError(f"task {task.name}: data.{name} is {value!r}; the card gives it as text")
    return value


def hub(task: Task, name: str, default: str = "") -> str:
    """A text value of the task's ``data.hub``."""
    value = task.data.get("hub", {}).get(name, default)
    return value if isinstance(value, str) else default


def split_of(task: Task) -> str:
    """The split whose files are read."""
    return hub(task, "split") or str(task.data.get("split", "")) or task.split or "test"


def media_root(root: Path, task: Task) -> Path:
    """The benchmark's folder below the data folder, or the data folder itself if it holds the files directly."""
    folder = root / key(task, "root", "")
    return folder if folder.is_dir() else root


def first_folder(folders: Iterable[Path], task: Task) -> Path:
    """The first folder that exists; MissingDataError names the first that was looked for."""
    tried = list(dict.fromkeys(folders))
    for folder in tried:
        if folder.is_dir():
            return folder
    raise MissingDataError(
        f"{tried[0]}: no such folder; it holds the data of {task.name}: fetch it, or name its parent with --data"
    )


def rows_folder(root: Path, task: Task) -> Path:
    """The folder of the repository that holds the rows of a task: by the repository's name, by its last part, or by the task's."""
    repository = hub(task, "repo")
    names = [name for name in (repository, PurePosixPath(repository).name, str(task.data.get("name", ""))) if name]
    return first_folder((base / name for base in (root, media_root(root, task)) for name in names), task)


def needed_file(path: Path, task: Task) -> Path:
    """The path, or MissingDataError if there is no such file."""
    if not path.is_file():
        raise MissingDataError(f"{path}: no such file; {task.name} needs it: fetch it, or name its folder with --data")
    return path


def with_medium(item: Item, part: str, ref: Any) -> Item:
    """The item with a medium in place of the part of that name."""
    return replace(item, **{part: ref})


def under(folder: Path, name: str, *place: object) -> Path:
    """``folder / name``; UserError, beginning with the parts of ``place``, for a name that leads out of the folder."""
    if not name or name[0] == "/" or ("." in name and ".." in name.split("/")) or "\x00" in name:
        raise UserError(f"{': '.join(map(str, place))}: {name!r} leads outside {folder}; paths are relative to it")
    return folder / name


def jsonl_rows(path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
    """Line numbers and rows of a jsonl file; UserError names the line that is no such row."""
    decoder = msgspec.json.Decoder(kind, strict=False)
    for number, line in numbered_lines(path):
        try:
            yield number, decoder.decode(line)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise damaged(path, number, error) from None


def damaged(path: Path, number: int, error: Exception) -> UserError:
    """The sentence about a line that cannot be read."""
    return UserError(f"{path}: line {number}: {error}; the file is cut short or damaged: fetch it again")


def table_files(folder: Path, config: str, split: str, task: Task) -> list[Path]:
    """The files of one config and split of a data set, as the hub lays them out; MissingDataError if there are none.

    Those of the split come first; a config with a single split is read whatever that split is called.
    """
    bases = [folder / config, folder / "data" / config] if config else [folder / "data", folder]
    for base in bases:
        for pattern in (f"{split}-*.parquet", f"{split}.parquet", f"{split}.jsonl", f"{split}.json"):
            if found := sorted(base.glob(pattern)):
                return _whole(found)
    for base in bases:
        found = sorted(base.glob("*.parquet")) if base.is_dir() else []
        if found and len({path.name.split("-")[0].removesuffix(".parquet") for path in found}) == 1:
            return _whole(found)
    raise MissingDataError(
        f"{bases[0] / f'{split}-*.parquet'}: no such files; {task.name} needs them: fetch them, or name their folder with --data"
    )


def _whole(files: list[Path]) -> list[Path]:
    """The files, or UserError if the parts that their names count are not all there."""
    parts = [path.stem.rsplit("-of-", 1)[1] for path in files if "-of-" in path.stem]
    if parts and parts[0].isdigit() and len(files) != int(parts[0]):
        raise UserError(f"{files[0].parent}: {len(files)} of {int(parts[0])} parts are there; fetch the rest")
    return files


def table_rows(files: Sequence[Path], columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Rows of parquet, jsonl or json files as dictionaries of the named columns; UserError if one of ``columns`` is missing.

    A column of media, binary or a struct with ``bytes``, gives ``Packed`` places.
    """
    for file in files:
        if file.suffix == ".parquet":
            yield from _parquet_rows(file, columns, optional)
            continue
        rows = (
            ((number, row) for number, row in jsonl_rows(file, dict)) if file.suffix == ".jsonl" else _json_rows(file)
        )
        for number, row in rows:
            for name in columns:
                if name not in row:
                    raise UserError(f"{file}: line {number}: no column {name}; it has {', '.join(map(str, row))}")
            yield row


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: {error}; the file is cut short or damaged: fetch it again") from None
    yield from enumerate(rows, 1)


def table_columns(files: Sequence[Path]) -> list[str]:
    """The columns of the first of the files."""
    if files[0].suffix == ".parquet":
        return list(opened_parquet(files[0]).schema_arrow.names)
    return list(next(table_rows(files[:1], ()), {}))


def _parquet_rows(path: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[dict[str, Any]]:
    with opened_parquet(path) as file:
        schema = file.schema_arrow
        if missing := [name for name in columns if name not in schema.names]:
            raise UserError(f"{path}: no column {missing[0]}; it has {', '.join(schema.names)}")
        wanted = [name for name in (*columns, *optional) if name in schema.names]
        packed = {name: column for name in wanted if (column := _packed_column(schema.field(name).type, name))}
        plain = [name for name in wanted if name not in packed]
        row = 0
        try:
            for size, values in _blocks(file, plain):
                for number in range(size):
                    cells = {name: column[number] for name, column in values.items()}
                    yield cells | {name: Packed.at(path, row, column) for name, column in packed.items()}
                    row += 1
        except (OSError, ValueError) as error:
            raise not_whole(path, error) from None


def _blocks(file: Any, columns: list[str]) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Sizes and columns of blocks of rows; the table's size alone where no column is wanted."""
    if not columns:
        yield file.metadata.num_rows, {}
        return
    for batch in file.iter_batches(BLOCK, columns=columns):
        yield batch.num_rows, {name: batch.column(name).to_pylist() for name in columns}


def _packed_column(kind: pa.DataType, name: str) -> str:
    """The column that holds the bytes of media, or "" if this is no column of media."""
    from pyarrow import types

    if types.is_struct(kind) and any(field.name == "bytes" for field in kind):
        return f"{name}.bytes"
    return name if types.is_binary(kind) or types.is_large_binary(kind) else ""
