"""Vectors on disk, found again by the content they were made from.

One folder per model fingerprint and dimension, holding append-only shards: Arrow IPC files with a 16-byte ``key``, the
``vector`` as the model emitted it, and the ``warnings`` that decoding its media gave. A shard is named after its keys, so two
processes that embed the same batch write the same file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnirecall.files import whole_file, write_whole

KEY_BYTES = 16


class Store:
    """The vectors of one model. ``damaged`` lists shards that could not be read; their items count as absent."""

    def __init__(self, root: Path, fingerprint: str, dimension: int, name: str) -> None:
        self.folder = root / hashlib.blake2b(f"{fingerprint} {dimension}".encode(), digest_size=16).hexdigest()
        self.dimension = dimension
        self.damaged: list[Path] = []
        self._shards: list[NDArray[np.float32]] = []
        self._where: dict[bytes, tuple[int, int]] = {}
        self._warnings: dict[bytes, list[str]] = {}
        if not self.folder.is_dir():
            write_whole(self.folder / "model.txt", f"{name}\n")
        for path in sorted(self.folder.glob("*.arrow")):
            self._open(path)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, key: bytes) -> bool:
        return key in self._where

    def holds_all(self, keys: Iterable[bytes]) -> bool:
        """Whether every key has its vector."""
        return all(key in self._where for key in keys)

    def append(
        self, keys: Sequence[bytes], vectors: NDArray[np.float32], warnings: Sequence[Sequence[str]] | None = None
    ) -> None:
        """Write one shard: float32, shape (len(keys), dimension), and what was amiss with each item's media."""
        path = self.folder / f"{hashlib.blake2b(b''.join(keys), digest_size=16).hexdigest()}.arrow"
        flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
        table = pa.table(
            {
                "key": pa.array(keys, pa.binary(KEY_BYTES)),
                "vector": pa.FixedSizeListArray.from_arrays(flat, self.dimension),
                "warnings": pa.array(warnings or [[]] * len(keys), pa.list_(pa.string())),
            }
        )
        with (
            whole_file(path) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        self._open(path)

    def gather(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """The vectors of ``keys`` in order: float32, shape (len(keys), dimension). KeyError for an absent one."""
        vectors = np.empty((len(keys), self.dimension), np.float32)
        for row, key in enumerate(keys):
            shard, position = self._where[key]
            vectors[row] = self._shards[shard][position]
        return vectors

    def warnings(self, key: bytes) -> list[str]:
        """What was amiss with the media behind a vector, one sentence each."""
        return self._warnings.get(key, [])

    def _open(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all().combine_chunks()
            keys = table.column("key").to_pylist()
            values = table.column("vector").combine_chunks().flatten().to_numpy()
            vectors = values.reshape(len(keys), self.dimension)
            warnings = table.column("warnings").to_pylist()
        except (pa.ArrowException, OSError, AttributeError, KeyError, TypeError, ValueError):
            self.damaged.append(path)
            return
        self._shards.append(vectors)
        self._where.update((key, (len(self._shards) - 1, row)) for row, key in enumerate(keys))
        self._warnings.update((key, said) for key, said in zip(keys, warnings, strict=True) if said)
