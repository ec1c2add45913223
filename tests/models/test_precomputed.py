"""Precomputed vectors: every layout and format against the arrays they were written from, and every refusal."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
from pyarrow import parquet

from omnirecall.errors import UserError
from omnirecall.media.types import DecodedItem
from omnirecall.models.base import ModelOptions
from omnirecall.models.load import load_model
from omnirecall.models.precomputed import Precomputed, load
from omnirecall.ranking import BFloat16, Ragged

IDS = ["a", "b", "c", "d e"]
WRITERS = ("npy", "npz", "safetensors", "parquet", "parquet-fixed")


def drawn(seed: int, rows: int = len(IDS), dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 5)).astype(dtype)


def put(stem: Path, kind: str, vectors: np.ndarray, ids: Sequence[str] = IDS) -> Path:
    """Write vectors with their ids in one of the formats."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.parent / f"{stem.name}.{kind.partition('-')[0]}"
    if kind in ("npy", "safetensors"):
        (stem.parent / f"{stem.name}.txt").write_text("".join(f"{name}\n" for name in ids))
    if kind == "npy":
        np.save(path, vectors)
    elif kind == "npz":
        np.savez(path, ids=np.array(ids), vectors=vectors)
    elif kind == "safetensors":
        safetensors.numpy.save_file({"vectors": vectors}, path, metadata={"made": "by a test"})
    else:
        flat = pa.array(vectors.reshape(-1))
        width = vectors.shape[1]
        column = (
            pa.FixedSizeListArray.from_arrays(flat, width)
            if kind == "parquet-fixed"
            else pa.ListArray.from_arrays(pa.array(np.arange(0, flat.__len__() + 1, width), pa.int32()), flat)
        )
        parquet.write_table(pa.table({"id": ids, "vector": column}), path, row_group_size=2)
    return path


def of(path: Path, **args: str) -> Precomputed:
    return load(str(path), ModelOptions(args=args))


def asked(names: Sequence[str], task: str = "t") -> list[DecodedItem]:
    return [DecodedItem(id=name, text="", task=task) for name in names]


# What is found, and where


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_format_gives_its_vectors_in_order(tmp_path: Path, kind: str, dtype: str) -> None:
    queries, candidates = drawn(1, dtype=dtype), drawn(2, dtype=dtype)
    put(tmp_path / "t" / "queries", kind, queries)
    put(tmp_path / "t" / "candidates", kind, candidates)
    model = load_model(f"vectors:{tmp_path}")
    assert (model.dimension, model.late_interaction, model.by_id) == (5, False, True)  # type: ignore[attr-defined]
    got = np.asarray(model.encode(asked(["d e", "a", "d e", "c"]), role="query"))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, queries[[3, 0, 3, 2]])
    np.testing.assert_array_equal(np.asarray(model.encode(asked(IDS), role="candidate")), candidates)


def test_bfloat16_stays_as_it_is(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    vectors = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    save_file({"other": torch.ones(3, dtype=torch.int64), "vectors": vectors}, tmp_path / "items.safetensors")
    (tmp_path / "items.txt").write_text("\n".join(IDS))
    model = of(tmp_path)
    got = model.encode(asked(["c", "a"]), role="query")
    assert isinstance(got, BFloat16)
    np.testing.assert_array_equal(got.bits, vectors[[2, 0]].view(torch.uint16).numpy())


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    put(tmp_path / "T_A-_V" / "queries", "npy", drawn(1))
    put(tmp_path / "T_A-_V" / "items", "npz", drawn(2))
    put(tmp_path / "u" / "items", "parquet", drawn(3))
    put(tmp_path / "candidates", "safetensors", drawn(4))
    put(tmp_path / "items", "npy", drawn(5))
    model = of(tmp_path)
    for task, role, seed in (
        ("T,A->V", "query", 1),
        ("T,A->V", "candidate", 2),
        ("u", "query", 3),
        ("u", "candidate", 3),
        ("v", "candidate", 4),
        ("v", "query", 5),
        ("", "query", 5),
    ):
        got = model.encode(asked(["b"], task), role=role)  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.asarray(got)[0], drawn(seed)[1], err_msg=f"{task} {role}")
    both = model.encode([*asked(["a"], "T,A->V"), *asked(["b"], "v")], role="query")
    np.testing.assert_array_equal(np.asarray(both), np.stack([drawn(1)[0], drawn(5)[1]]))


@pytest.mark.parametrize("kind", WRITERS)
def test_one_file_serves_all(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path / "mine", kind, drawn(1))
    model = of(path)
    assert model.name == "mine"
    np.testing.assert_array_equal(np.asarray(model.encode(asked(IDS), role="candidate")), drawn(1))


def test_one_parquet_holds_tasks_and_roles(tmp_path: Path) -> None:
    vectors = drawn(1, rows=5)
    rows = {
        "id": ["x", "y", "x", "x", "y"],
        "task": ["t", "t", "t", "u", "u"],
        "role": ["query", "query", "candidate", "query", "candidate"],
        "vector": vectors.tolist(),
    }
    table = pa.table(rows)
    for column in ("task", "role"):  # as pandas writes categories
        table = table.set_column(table.column_names.index(column), column, table.column(column).dictionary_encode())
    parquet.write_table(table, tmp_path / "all.parquet")
    model = of(tmp_path / "all.parquet")
    for name, task, role, row in (
        ("y", "t", "query", 1),
        ("x", "t", "candidate", 2),
        ("x", "u", "query", 3),
        ("y", "u", "candidate", 4),
    ):
        np.testing.assert_array_equal(np.asarray(model.encode(asked([name], task), role=role))[0], vectors[row])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no vector for candidates of task t: y"):
        model.encode(asked(["y"], "t"), role="candidate")


# Late interaction


def late_arrays() -> tuple[np.ndarray, np.ndarray]:
    return drawn(7, rows=9), np.array([0, 2, 3, 7, 9])


def put_late(path: Path) -> None:
    values, offsets = late_arrays()
    if path.suffix == ".npz":
        np.savez(path, ids=np.array(IDS), vectors=values, offsets=offsets)
    elif path.suffix == ".safetensors":
        safetensors.numpy.save_file({"vectors": values, "offsets": offsets}, path)
        path.with_suffix(".txt").write_text("\n".join(IDS))
    else:
        lists = [values[start:stop].tolist() for start, stop in pairwise(offsets)]
        column = pa.array(lists, pa.list_(pa.list_(pa.float32())))
        parquet.write_table(pa.table({"id": IDS, "vector": column}), path, row_group_size=3)


@pytest.mark.parametrize("ending", ["npz", "safetensors", "parquet"])
def test_late_interaction(tmp_path: Path, ending: str) -> None:
    put_late(tmp_path / f"items.{ending}")
    model = of(tmp_path)
    assert (model.late_interaction, model.dimension) == (True, 5)
    got = model.encode(asked(["c", "b", "a"]), role="query")
    assert isinstance(got, Ragged)
    values, _ = late_arrays()
    np.testing.assert_array_equal(got.offsets, [0, 4, 5, 7])
    np.testing.assert_array_equal(got.values, values[[3, 4, 5, 6, 2, 0, 1]])
    assert got.values.dtype == np.float32


# What is known before a vector is read


def test_facts_come_from_heads_alone(tmp_path: Path) -> None:
    put(tmp_path / "t" / "queries", "npz", drawn(1))
    put(tmp_path / "t" / "candidates", "parquet", drawn(2))
    program = (
        "import sys; from omnirecall.models import precomputed;"
        f"m = precomputed.load({str(tmp_path)!r}, precomputed.ModelOptions());"
        "print(m.name, m.dimension, m.late_interaction, len(m.tables), m.supports({'video', 'text'}), m.supports({'smell'}));"
        "print([x for x in ('torch', 'pyarrow.dataset', 'safetensors', 'pandas') if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{tmp_path.name} 5 False 0 True False", "[]"]


def test_the_fingerprint_follows_vectors_and_ids(tmp_path: Path) -> None:
    path = put(tmp_path / "v" / "items", "npy", drawn(1))
    plain, alone = of(tmp_path / "v").fingerprint, of(path).fingerprint
    assert of(tmp_path / "v", name="other").fingerprint == plain
    assert of(tmp_path / "v", name="other").name == "other"
    path.with_suffix(".txt").write_text("a\nb\nd e\nc\n")
    assert of(tmp_path / "v").fingerprint != plain
    assert of(path).fingerprint != alone
    put(tmp_path / "v" / "items", "npy", drawn(2))
    assert of(tmp_path / "v").fingerprint != plain
    assert of(path).fingerprint != alone


# Refusals


def test_missing_ids_are_named(tmp_path: Path) -> None:
    path = put(tmp_path / "t" / "queries", "npy", drawn(1))
    model = of(tmp_path)
    with pytest.raises(UserError) as error:
        model.encode(asked(["a", "v", "w", "b", "x", "y"]), role="query")
    assert str(error.value) == f"{path}: has no vector for queries of task t: v, w, x and 1 more; add them"
    with pytest.raises(
        UserError, match=r"has no candidates of task t: give one of t/candidates, t/items, candidates, items"
    ):
        model.encode(asked(["a"]), role="candidate")


@pytest.mark.parametrize("kind", WRITERS)
def test_ids_that_stand_twice_are_named(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "items", kind, drawn(1), ["a", "b", "c", "b"])
    with pytest.raises(UserError, match="the id b stands twice, in rows 1 and 3"):
        of(tmp_path).encode(asked(["a"]), role="query")


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_as_many_ids_as_vectors(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "items", kind, drawn(1), IDS[:3])
    with pytest.raises(UserError, match="3 ids for"):
        of(tmp_path).encode(asked(["a"]), role="query")


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("change", "sentence"), [("integers", "int32"), ("flat", "shape|lists of floats"), ("none", "none of them 0|shape")]
)
def test_wrong_arrays_are_named(tmp_path: Path, kind: str, change: str, sentence: str) -> None:
    if change == "integers":
        put(tmp_path / "items", kind, drawn(1).astype(np.int32))
    elif change == "none":
        if kind == "safetensors":
            return  # its library writes a tensor without bytes, and that is damage to us
        put(tmp_path / "items", kind, drawn(1)[:0], [])
    elif kind.startswith("parquet"):
        parquet.write_table(pa.table({"id": IDS, "vector": [1.0, 2.0, 3.0, 4.0]}), tmp_path / "items.parquet")
    else:
        put(tmp_path / "items", kind, drawn(1)[:, 0])
    with pytest.raises(UserError, match=sentence) as error:
        of(tmp_path).encode(asked(["a"]), role="query")
    assert "items." in str(error.value)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [(drawn(1)[:, :4], "4 dimensions in float32, but"), (drawn(1).astype(np.float16), "5 dimensions in float16, but")],
)
def test_files_must_agree(tmp_path: Path, other: np.ndarray, sentence: str) -> None:
    put(tmp_path / "t" / "candidates", "npy", drawn(1))
    put(tmp_path / "t" / "queries", "npz", other)
    with pytest.raises(UserError, match=sentence):
        of(tmp_path)


def test_late_and_single_vectors_do_not_mix(tmp_path: Path) -> None:
    put_late(tmp_path / "queries.npz")
    put(tmp_path / "candidates", "npy", drawn(1))
    with pytest.raises(UserError, match="holds lists of vectors of 5 dimensions"):
        of(tmp_path)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_damaged_files_are_named(tmp_path: Path, kind: str, share: float) -> None:
    path = put(tmp_path / "items", kind, drawn(1, rows=200), [f"i{row}" for row in range(200)])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match=path.name):
        of(tmp_path).encode(asked(["i1"]), role="query")


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_nothing_is_unpickled(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "npy":
        np.save(tmp_path / "items.npy", np.array([[Evil()]], object), allow_pickle=True)
        (tmp_path / "items.txt").write_text("a\n")
    else:
        np.savez(tmp_path / "items.npz", ids=np.array([Evil()], object), vectors=drawn(1)[:1])
    with pytest.raises(UserError, match="plain"):
        of(tmp_path).encode(asked(["a"]), role="query")
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 10**9]},
        {"data_offsets": [-40, 40]},
        {"data_offsets": [40, 0]},
        {"shape": [10**6, 5]},
        {"shape": [-4, -5]},
        {"shape": "ab"},
        {"dtype": ["F32"]},
        {"data_offsets": None},
    ],
)
def test_a_safetensors_header_cannot_point_outside(tmp_path: Path, change: dict[str, Any]) -> None:
    header = json.dumps({"vectors": {"dtype": "F32", "shape": [4, 5], "data_offsets": [0, 80]} | change}).encode()
    path = tmp_path / "items.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(80))
    with pytest.raises(UserError, match=r"not a whole \.safetensors file"):
        of(tmp_path)
    path.write_bytes((1 << 62).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match=r"not a whole \.safetensors file"):
        of(tmp_path)


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([0, 2, 3, 7], "5 whole numbers are expected"),
        ([0, 2, 3, 7, 8], "from 0 to 8; from 0 to 9"),
        ([1, 2, 3, 7, 9], "from 1 to 9"),
        ([0, 3, 3, 7, 9], "the id b has no vectors"),
        ([0, 5, 3, 7, 9], "the id b has no vectors"),
        ([0.0, 2, 3, 7, 9], "float64"),
    ],
)
def test_offsets_that_do_not_fit(tmp_path: Path, offsets: list[float], sentence: str) -> None:
    np.savez(tmp_path / "items.npz", ids=np.array(IDS), vectors=drawn(7, rows=9), offsets=np.array(offsets))
    with pytest.raises(UserError, match=sentence):
        of(tmp_path).encode(asked(["a"]), role="query")


def _column(values: list[Any]) -> Callable[[], pa.Table]:
    return lambda: pa.table({"id": ["a", "b"], "vector": pa.array(values)})


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (_column([[1.0, 2.0], [1.0]]), "the vector of id b has 1 dimensions, others have 2"),
        (_column([[1.0, 2.0], None]), "1 rows have no vector"),
        (_column([[[1.0, 2.0]], []]), "the id b has no vectors"),
        (_column([[[1.0, 2.0]], [[1.0]]]), "the vector of id b has 1 dimensions"),
        (_column([[[1.0, 2.0]], [None]]), "has an empty place"),
        (_column([[[[1.0]]], [[[1.0]]]]), "lists of floats are expected"),
        (_column([["x"], ["y"]]), "vectors are string"),
        (lambda: pa.table({"vector": [[1.0]]}), "has no column id"),
        (lambda: pa.table({"id": ["a"]}), "has no column vector"),
        (lambda: pa.table({"id": ["a", None], "vector": [[1.0], [2.0]]}), "the id in row 1 is empty"),
        (lambda: pa.table({"id": ["a"], "role": ["doc"], "vector": [[1.0]]}), "the role doc is neither"),
        (lambda: pa.table({"id": [["a"]], "vector": [[1.0]]}), "other than text"),
    ],
)
def test_wrong_parquet_is_named(tmp_path: Path, table: Callable[[], pa.Table], sentence: str) -> None:
    parquet.write_table(table(), tmp_path / "items.parquet")
    with pytest.raises(UserError, match=sentence):
        of(tmp_path).encode(asked(["a"]), role="query")


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder or file"):
        of(tmp_path / "no")
    with pytest.raises(UserError, match="there is no such folder or file"):
        load("", ModelOptions())
    with pytest.raises(UserError, match="holds no vectors"):
        of(tmp_path)
    (tmp_path / "v.csv").write_text("a,1\n")
    with pytest.raises(UserError, match=r"ends in none of \.npy"):
        of(tmp_path / "v.csv")
    put(tmp_path / "t" / "query", "npz", drawn(1))
    with pytest.raises(UserError, match=r"query\.npz: is named neither queries, candidates nor items"):
        of(tmp_path)
    (tmp_path / "t" / "query.npz").unlink()
    put(tmp_path / "t" / "queries", "npz", drawn(1))
    put(tmp_path / "t" / "queries", "npy", drawn(1))
    with pytest.raises(UserError, match=r"queries\.npz: stands beside queries\.npy"):
        of(tmp_path)
    (tmp_path / "t" / "queries.npz").unlink()
    (tmp_path / "t" / "queries.txt").unlink()
    with pytest.raises(UserError, match=r"queries\.txt: no such file"):
        of(tmp_path).encode(asked(["a"]), role="query")
    with zipfile.ZipFile(tmp_path / "t" / "candidates.npz", "w") as archive:
        archive.writestr("ids.npy", b"")
    with pytest.raises(UserError, match=r"candidates\.npz: not a whole"):
        of(tmp_path)


def test_options_that_it_does_not_take(tmp_path: Path) -> None:
    put(tmp_path / "items", "npy", drawn(1))
    with pytest.raises(UserError, match="no choice of dtype"):
        load(str(tmp_path), ModelOptions(dtype="float16"))
    with pytest.raises(UserError, match="has no such argument; it takes name"):
        load(str(tmp_path), ModelOptions(args={"ids": "x"}))
